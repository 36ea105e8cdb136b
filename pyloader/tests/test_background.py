"""A first load returns when its loader does, and the entry is written meanwhile."""

from __future__ import annotations

import errno
import gc
import logging
import mmap
import os
import pathlib
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import overmind_cext
import pytest
import torch
from torch import nn

from overmind import activity, arena, background, copier, fill
from overmind.api import finish_fills, load, stats
from overmind.errors import OvermindError
from overmind.staging import Staging


def model(seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    m = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.rand(p.shape, generator=generator))
    m[3].weight = m[2].weight
    return m


def from_file(path: str) -> dict[str, Any]:
    with open(path) as f:
        return {'text': f.read(), 'weight': torch.ones(1000)}


def shared(n: int) -> torch.Tensor:
    """Over memory that another process may have too."""
    return torch.frombuffer(mmap.mmap(-1, n), dtype=torch.uint8).fill_(7)


def equal(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return list(x) == list(y) and all(torch.equal(x[n], y[n]) for n in x)


@pytest.fixture(autouse=True)
def _meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv('OVERMIND_FILL', 'background')
    yield
    assert background.finish(60)
    background._failures.clear()


class Gate:
    """Lets the copies begin when it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        copy = copier.Copier.copy

        def wait(*args: Any, **kwargs: Any) -> None:
            self.reached.set()
            assert self.opened.wait(60)
            copy(*args, **kwargs)

        monkeypatch.setattr(copier.Copier, 'copy', wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.opened.set()


def entries(root: pathlib.Path) -> list[str]:
    return os.listdir(root / 'pipelines')


def test_the_program_goes_on_with_the_loaders_object(root: pathlib.Path, gate: Gate) -> None:
    found = load(model, 1)
    assert not finish_fills(0.05)
    assert entries(root) == []
    with torch.no_grad():
        for p in found.parameters():
            p.zero_()
    gate.opened.set()
    assert finish_fills()
    assert len(entries(root)) == 1
    hit = load(model, 1)
    assert [one.outcome for one in stats().loads] == ['miss', 'hit']
    assert equal(hit, model(1))
    assert hit[3].weight is hit[2].weight
    assert {'load', 'pickle', 'fork', 'copy', 'commit'} <= set(stats().loads[0].seconds)
    assert stats().loads[0].access == 'directory'


def test_its_memory_is_the_programs(root: pathlib.Path, gate: Gate) -> None:
    """Nothing of this process keeps it."""
    found = weakref.ref(load(model, 2))
    gc.collect()
    assert found() is None
    gate.opened.set()
    assert finish_fills()
    assert equal(load(model, 2), model(2))
    assert stats().hits == 1


def test_the_same_load_waits_for_it(root: pathlib.Path, gate: Gate) -> None:
    load(model, 3)
    assert gate.reached.wait(60)
    threading.Timer(0.2, gate.opened.set).start()
    assert equal(load(model, 3), model(3))
    assert [one.outcome for one in stats().loads] == ['miss', 'hit']


def slow(seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return torch.ones(10)


def test_a_load_that_waits_has_nothing_to_do_with_others(root: pathlib.Path, gate: Gate) -> None:
    """One that ends meanwhile has ended, and holds up no entry of a later load."""
    load(model, 15)
    assert gate.reached.wait(60)
    other = threading.Thread(target=load, args=(slow, 0.5))
    other.start()
    while not activity._loading:
        time.sleep(0.01)
    waiter = threading.Thread(target=load, args=(model, 15))
    waiter.start()
    other.join()
    assert waiter.is_alive()
    gate.opened.set()
    waiter.join()
    start = time.monotonic()
    activity.wait_for_quiet(0.0, 5.0)
    assert time.monotonic() - start < 1


def test_one_that_is_about_to_begin_is_waited_for(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, found = threading.Thread.start, []

    def late(self: threading.Thread) -> None:
        if self.name == 'overmind-fill':
            found.append(finish_fills(0.05))
        start(self)

    monkeypatch.setattr(threading.Thread, 'start', late)
    load(model, 16)
    assert found == [False]
    assert finish_fills()
    assert len(entries(root)) == 1


def test_one_that_ends_while_room_is_looked_for(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    def none() -> int:
        gate.opened.set()
        assert background.finish(60)
        return 0

    load(model, 17)
    assert gate.reached.wait(60)
    monkeypatch.setattr(background, 'available_memory', none)
    load(model, 18)
    assert finish_fills()
    assert (stats().misses, stats().bypasses) == (2, 0)
    assert len(entries(root)) == 2


def test_what_comes_from_it_is_an_argument_at_once(root: pathlib.Path, gate: Gate) -> None:
    part = load(model, 4)
    whole = load(around, part)
    assert whole[0] is part
    gate.opened.set()
    assert finish_fills()
    part = load(model, 4)
    assert load(around, part)[0] is part
    assert (stats().misses, stats().hits, stats().bypasses) == (2, 2, 0)


def around(part: nn.Module) -> nn.Module:
    return nn.Sequential(part, nn.Linear(8, 8))


def test_a_large_component_has_one_arena(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, 'SHARD', 20_000)
    load(model, 15)
    assert finish_fills()
    assert [path.name for path in root.glob('pipelines/*/tensors/*')] == ['model.safetensors']
    monkeypatch.setenv('OVERMIND_FILL', 'inline')
    load(the_same, 15)
    assert len(list(root.glob('pipelines/the_same-*/tensors/*'))) > 3


def test_equal_components_are_linked(root: pathlib.Path) -> None:
    load(model, 5)
    assert finish_fills()
    load(the_same, 5)
    assert finish_fills()
    assert stats().loads[-1].shared == stats().loads[-1].nbytes > 0
    assert equal(load(the_same, 5), model(5))


def the_same(seed: int) -> nn.Module:
    return model(seed)


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def commit(self: Staging) -> None:
        raise error

    monkeypatch.setattr(Staging, 'commit', commit)


def test_the_log_says_what_is_there_and_what_is_to_come(
    root: pathlib.Path, caplog: pytest.LogCaptureFixture, gate: Gate
) -> None:
    caplog.set_level(logging.INFO, 'overmind')
    load(model, 19)
    assert 'loaded; being written is model-' in caplog.text
    assert 'filled' not in caplog.text
    gate.opened.set()
    assert finish_fills()
    assert 'written to the cache, model-' in caplog.text


def test_what_fails_is_a_warning_and_no_entry(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    fail(monkeypatch, OSError(errno.ENOSPC, 'no space'))
    assert equal(load(model, 6), model(6))
    assert finish_fills()
    (warning,) = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert 'model is loaded, but not kept in the cache' in warning
    assert 'the disk is full' in warning
    assert (stats().misses, stats().bypasses, stats().loads[0].outcome) == (0, 1, 'bypass')
    assert entries(root) == os.listdir(root / 'staging') == []
    monkeypatch.undo()
    monkeypatch.setenv('OVERMIND_ROOT', str(root))
    monkeypatch.setenv('OVERMIND_FILL', 'background')
    load(model, 6)
    assert finish_fills()
    load(model, 6)
    assert stats().hits == 1


@pytest.mark.parametrize('by', ['the next load', 'finish_fills'])
def test_what_fails_is_raised_as_soon_as_that_can_be(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    fail(monkeypatch, OSError(errno.EIO, 'Input/output error'))
    load(model, 7)
    assert background.finish(60)
    with pytest.raises(OvermindError, match='Input/output error'):
        load(model, 8) if by == 'the next load' else finish_fills()
    assert finish_fills()


def test_an_error_that_nobody_foresaw(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    fail(monkeypatch, ZeroDivisionError('in there'))
    load(model, 9)
    assert finish_fills()
    assert 'ZeroDivisionError: in there' in caplog.text


def test_a_copier_that_dies(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gate: Gate
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    load(model, 10)
    assert gate.reached.wait(60)
    (child,) = copiers()
    os.kill(child, signal.SIGKILL)
    gate.opened.set()
    assert finish_fills()
    assert 'the process that copies the weights was killed' in caplog.text
    assert entries(root) == []
    assert copiers() == []


def copiers() -> list[int]:
    """Of this process, also those that have ended and not been waited for."""
    found = []
    for status in pathlib.Path('/proc').glob('[0-9]*/status'):
        try:
            fields = dict(line.split(':\t', 1) for line in status.read_text().splitlines() if ':\t' in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields['PPid']) == os.getpid() and fields['Name'] in ('overmind-fill', 'python', 'pytest'):
            found.append(int(fields['Pid']))
    return found


@pytest.mark.parametrize('why', ['clone', 'thread', 'copier'])
def test_without_a_process_or_a_thread_the_program_waits(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread") if why == 'thread' else OSError(errno.ENOSYS, 'not here')

    def nothing(sock: int, _: Any) -> int:
        return os.pidfd_open(os.getpid())

    if why == 'thread':
        monkeypatch.setattr(background.Publication, 'start', refuse)
    else:
        monkeypatch.setattr(overmind_cext, 'start_copier', refuse if why == 'clone' else nothing)
        monkeypatch.setattr(signal, 'pidfd_send_signal', lambda *_: None)
    load(model, 11)
    assert len(entries(root)) == 1
    assert 'fork' not in stats().loads[0].seconds
    assert copiers() == []


def test_memory_that_others_write_to_is_copied_before(root: pathlib.Path) -> None:
    load(shared, 10_000)
    assert len(entries(root)) == 1
    assert torch.equal(load(shared, 10_000), shared(10_000))
    assert 'fork' not in stats().loads[0].seconds


def test_a_file_that_changes_before_it_is_copied(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, gate: Gate
) -> None:
    """The library may have mapped it, and then the copy would be of both."""
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    path = tmp_path / 'file'
    path.write_text('before')
    load(from_file, str(path))
    assert gate.reached.wait(60)
    path.write_text('afterwards')
    gate.opened.set()
    assert finish_fills()
    assert 'changed before it was copied' in stats().loads[0].reason
    assert entries(root) == []


@pytest.mark.parametrize('setting', ['auto', 'inline'])
def test_small_ones_are_written_at_once(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv('OVERMIND_FILL', setting)
    load(model, 13)
    assert len(entries(root)) == 1


def test_where_memory_is_short_it_is_shared(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_FILL', 'auto')
    monkeypatch.setattr(fill, 'available_memory', lambda: 33_000_000)
    load(torch.zeros, 17_000_000)
    assert len(entries(root)) == 1


@pytest.mark.parametrize('strict', ['0', '1'])
def test_large_ones_are_not(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, strict: str) -> None:
    monkeypatch.setenv('OVERMIND_FILL', 'auto')
    monkeypatch.setenv('OVERMIND_STRICT', strict)
    load(torch.zeros, 17_000_000)
    assert entries(root) == []
    gate.opened.set()
    assert finish_fills()
    assert len(entries(root)) == 1


def test_a_child_has_nothing_of_it(root: pathlib.Path, gate: Gate) -> None:
    """Neither the arena that is being written, which could not be published, nor anything to wait for."""
    load(model, 14)
    assert gate.reached.wait(60)
    waiting, go_on = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_on)
        links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n.isdigit() and alive(n)]
        ours = ('staging', 'locks', 'pidfd')
        ok = finish_fills() and not any(word in link for link in links for word in ours)
        os.read(waiting, 1)
        os._exit(0 if ok else 1)
    os.close(waiting)
    gate.opened.set()
    assert finish_fills()
    assert len(entries(root)) == 1
    os.close(go_on)
    assert os.waitpid(child, 0)[1] == 0


def alive(number: str) -> bool:
    try:
        os.fstat(int(number))
    except OSError:
        return False
    return True
