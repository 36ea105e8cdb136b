"""The same loader on a plain directory, and entries there that are not what they should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.tests.conftest import ForkChild

Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, Damage] = {
    'empty': lambda data: b'',
    'half': lambda data: data[: len(data) // 2],
    'one byte short': lambda data: data[:-1],
    'zeros': lambda data: bytes(len(data)),
    'another format': lambda data: data[:4] + b'NOPE' + data[8:],
    'ones': lambda data: data[:8] + b'\xff' * (len(data) - 8),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ('pipelines', 'staging', 'locks'):
        (tmp_path / 'root' / name).mkdir(parents=True)
    return tmp_path / 'root'


@pytest.fixture
def filled(root: Path, fork_child: ForkChild) -> tuple[Path, str]:
    """The entry in a plain directory, and the digest of what it holds."""
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert answer['misses'] == 1
    (entry,) = (root / 'pipelines').iterdir()
    return entry, answer['digest']


def spoil(path: Path, damage: Damage) -> None:
    """Replace a file that is 0444 by a damaged copy."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(data))
    os.chmod(path, 0o444)


def test_second_load_hits(filled: tuple[Path, str], root: Path, fork_child: ForkChild) -> None:
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert (answer['hits'], answer['digest']) == (1, filled[1])


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', ['manifest', 'structure.pkl'])
def test_damaged_file_never_gives_another_object(
    filled: tuple[Path, str], root: Path, fork_child: ForkChild, name: str, damage: str
) -> None:
    entry, truth = filled
    spoil(entry / name, DAMAGES[damage])
    child = fork_child(root)
    answer = child.ask('load assorted')
    assert answer['digest'] == truth
    # The last byte of a FlatBuffer may be one that nobody needs.
    assert answer['hits'] == 0 or (name, damage) == ('manifest', 'one byte short')
    assert child.finish() == 0


@pytest.mark.parametrize('damage', ['empty', 'half', 'one byte short'])
def test_shortened_arena_is_found_before_it_is_mapped(
    filled: tuple[Path, str], root: Path, fork_child: ForkChild, damage: str
) -> None:
    entry, truth = filled
    (arena,) = (entry / 'tensors').iterdir()
    spoil(arena, DAMAGES[damage])
    answer = fork_child(root).ask('load assorted')
    assert (answer['digest'], answer['hits']) == (truth, 0)


@pytest.mark.parametrize('name', ['manifest', 'structure.pkl', 'tensors'])
def test_missing_part(filled: tuple[Path, str], root: Path, fork_child: ForkChild, name: str) -> None:
    entry, truth = filled
    (entry / name).rename(root / 'gone')
    answer = fork_child(root).ask('load assorted')
    assert (answer['digest'], answer['hits']) == (truth, 0)


def test_damaged_entry_is_mended(filled: tuple[Path, str], root: Path, fork_child: ForkChild) -> None:
    entry, truth = filled
    spoil(entry / 'manifest', DAMAGES['half'])
    fork_child(root).ask('load assorted')
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert (answer['hits'], answer['digest']) == (1, truth)
