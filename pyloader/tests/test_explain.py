"""What ``explain`` says, and that ``load`` then does just that."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from overmind.api import Explanation, explain, load, stats
from overmind.errors import CorruptEntry
from overmind.explain import MAX_MANIFESTS
from overmind.key import versions
from overmind.store import Store

PLACES = ('OVERMIND_ROOT', 'PATH', 'TMPDIR', 'XDG_RUNTIME_DIR')


class Options:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def make(path: str, scale: float = 1.0, options: Any = None) -> dict[str, Any]:
    return {'weight': torch.load(path)['weight'] * scale}


def keeps_a_file(path: str) -> Any:
    return open(path, 'rb')


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.save({'weight': torch.arange(6.0)}, path)
    return str(path)


def outcome(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Explanation, str]:
    """What explain says, and what load then counts; explaining twice changes nothing."""
    said, again = explain(fn, *args, **kwargs), explain(fn, *args, **kwargs)
    assert said == again
    load(fn, *args, **kwargs)
    return said, stats().loads[-1].outcome


def test_hit(root: pathlib.Path, checkpoint: str) -> None:
    load(make, checkpoint)
    said, done = outcome(make, path=checkpoint)
    assert said.outcome == done == 'hit'
    assert said.id == stats().loads[-1].id
    assert (said.differences, said.nearest) == ([], None)
    assert str(said) == f'hit: {said.id}\n  the entry is there and up to date'


def test_nothing_is_called_counted_or_written(root: pathlib.Path, checkpoint: str) -> None:
    said = explain(make, checkpoint)
    assert said.outcome == 'miss'
    assert said.reason == 'not in the cache, and no entry of this class and model is'
    assert stats().loads == []
    assert not list((root / 'locks').iterdir())
    assert not list((root / 'pipelines').iterdir())


def test_another_argument(root: pathlib.Path, checkpoint: str) -> None:
    first = load(make, checkpoint, scale=2.0)
    assert first is not None
    said, done = outcome(make, checkpoint, scale=3.0)
    assert said.outcome == done == 'miss'
    assert said.differences == [('argument scale', '2.0', '3.0')]
    assert said.nearest == stats().loads[0].id
    assert said.reason == 'not in the cache; the nearest entry differs in argument scale'
    assert str(said).splitlines()[2:] == [f'  in {said.nearest}, and now:', '    argument scale: 2.0 -> 3.0']
    name, then, now = explain(make, checkpoint).differences[0]
    assert (name, now) == ('argument scale', '(none)')
    assert then in ('2.0', '3.0')


def test_what_manifests_show_in_short_still_differs(root: pathlib.Path, checkpoint: str) -> None:
    load(make, checkpoint, options={'a': [1, 2, 3]})
    ((name, then, now),) = explain(make, checkpoint, options={'a': [1, 2, 4]}).differences
    assert name == 'argument options'
    assert then != now
    assert then.startswith('dict #')
    ((name, then, now),) = explain(make, checkpoint, options='x' * 500).differences
    assert now.startswith('xxx')
    assert len(now) < 140


def test_the_nearest_has_most_in_common(root: pathlib.Path, checkpoint: str) -> None:
    load(make, checkpoint, scale=2.0, options='a')
    load(make, checkpoint, scale=3.0, options='b')
    said = explain(make, checkpoint, scale=3.0, options='c')
    assert said.nearest == stats().loads[1].id
    assert said.differences == [('argument options', 'b', 'c')]


def test_changed_code(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(make, checkpoint)
    scope = {'torch': torch, '__name__': __name__}
    exec('def make(path, scale=1.0, options=None):\n    return {"weight": torch.load(path)["weight"] + scale}', scope)
    said = explain(scope['make'], checkpoint)
    assert [name for name, _, _ in said.differences] == ['code']


def test_changed_file(root: pathlib.Path, checkpoint: str) -> None:
    load(make, checkpoint)
    torch.save({'weight': torch.arange(7.0)}, checkpoint)
    said, done = outcome(make, checkpoint)
    assert said.outcome == done == 'miss'
    assert said.nearest == said.id
    assert said.reason == f'{checkpoint}: modified' == stats().loads[-1].reason
    ((name, then, now),) = said.differences
    assert name == checkpoint
    assert ' bytes, written 20' in then
    assert ' bytes, written 20' in now
    assert then != now
    assert '  in the entry, and now:' in str(said)
    os.unlink(checkpoint)
    assert explain(make, checkpoint).outcome == 'miss'


def test_changed_folder(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / 'model'
    folder.mkdir()
    (folder / 'config.json').write_text('{}')
    load(sorted_names, str(folder))
    (folder / 'new.txt').write_text('x')
    said, done = outcome(sorted_names, str(folder))
    assert said.outcome == done == 'miss'
    assert said.differences == [(str(folder), 'as recorded', 'files came or went')]


def sorted_names(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


def test_changed_version(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(make, checkpoint)
    installed = dict(versions.installed())
    was = installed['torch']
    monkeypatch.setattr(versions, 'installed', lambda: {**installed, 'torch': '99.0'})
    said = explain(make, checkpoint)
    assert said.outcome == 'miss'
    assert said.differences == [('version of torch', was, '99.0')]


def test_an_argument_without_a_key(root: pathlib.Path, checkpoint: str) -> None:
    said = explain(make, checkpoint, options=[object()])
    assert (said.outcome, said.id) == ('bypass', '')
    assert said.reason.startswith('argument options[0]: ')


def test_no_mount(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_ROOT', '/nowhere/at/all')
    assert explain(make, checkpoint).reason.startswith('/nowhere/at/all is not a folder')
    monkeypatch.delenv('OVERMIND_ROOT')
    said = explain(make, checkpoint)
    assert said.outcome == 'bypass'
    assert 'OVERMIND_ROOT is not set' in said.reason
    monkeypatch.setenv('OVERMIND_DISABLE', '1')
    assert explain(make, checkpoint).reason == 'OVERMIND_DISABLE is set'


def test_autostart_starts_nothing(
    root: pathlib.Path, tmp_path: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / 'run').mkdir(mode=0o700)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path / 'run'))
    monkeypatch.setenv('OVERMIND_AUTOSTART', '1')
    said = explain(make, checkpoint)
    assert said.outcome == 'miss'
    assert 'no daemon runs yet' in said.reason


def test_given_up_before(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain(keeps_a_file, checkpoint).outcome == 'miss'
    monkeypatch.delenv('OVERMIND_STRICT')
    load(keeps_a_file, checkpoint).close()
    said = explain(keeps_a_file, checkpoint)
    assert said.outcome == 'bypass'
    assert said.reason.startswith('an earlier call in this process could not be kept: ')


def test_another_users_entry(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(make, checkpoint)
    uid = os.geteuid()
    monkeypatch.setattr(os, 'geteuid', lambda: 4242)
    said = explain(make, checkpoint)
    assert said.outcome == 'bypass'
    assert said.differences == [('owner', f'uid {uid}', 'uid 4242')]


def test_a_damaged_entry(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(make, checkpoint)
    (arena,) = root.glob('pipelines/*/tensors/*')
    arena.chmod(0o644)
    os.truncate(arena, arena.stat().st_size - 1)
    assert explain(make, checkpoint).outcome == 'bypass'
    monkeypatch.delenv('OVERMIND_STRICT')
    said, done = outcome(make, checkpoint)
    assert said.outcome == done == 'miss'
    assert 'damaged' in said.reason


def test_in_a_loader(root: pathlib.Path, checkpoint: str) -> None:
    assert load(explains, checkpoint) == 'bypass'


def explains(path: str) -> str:
    return explain(make, path).outcome


def test_many_differences_are_cut() -> None:
    many = [(f'argument {i}', 'x' * 90, 'y') for i in range(20)]
    text = str(Explanation('miss', 'a-1', 'why', many, 'a-2'))
    assert text.endswith('    and 8 more')
    assert all(len(line) < 120 for line in text.splitlines())


def test_at_most_fifty_manifests_are_read(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load(make, checkpoint)
    (entry,) = root.glob('pipelines/*')
    stem = entry.name[:-12]
    for i in range(60):
        (root / 'pipelines' / f'{stem}{i:012x}').mkdir()
    read: list[str] = []

    def damaged(self: Store, folder: str) -> Any:
        read.append(folder)
        raise FileNotFoundError(folder) if len(read) == 1 else CorruptEntry(folder)

    monkeypatch.setattr(Store, '_manifest', damaged)
    assert explain(make, checkpoint, scale=9.0).outcome == 'miss'
    assert len(read) == 1 + MAX_MANIFESTS
