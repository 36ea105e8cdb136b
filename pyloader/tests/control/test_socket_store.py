"""The store on a daemon of a few lines: a plain directory with a status and a socket."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import socket

import pytest
import torch
from fake import FakeDaemon, eventually, give, reply

from overmind import directory, logs
from overmind.api import load, stats
from overmind.control.generated import control_generated as fb
from overmind.errors import StoreError
from overmind.store import Store


@pytest.fixture(autouse=True)
def _taken_for_a_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, '_is_mounted', lambda _device: True)


def offer(root: pathlib.Path, **features: bool) -> None:
    (root / 'status.json').write_text(json.dumps({name: {'active': on} for name, on in features.items()}))


@pytest.mark.parametrize(
    ('access', 'features', 'way'),
    [
        ('auto', {'passthrough': True, 'fd_passing': True}, 'passthrough'),
        ('auto', {'passthrough': False, 'fd_passing': True}, 'fd'),
        ('auto', {'passthrough': False, 'fd_passing': False}, 'read'),
        ('auto', {'passthrough': False}, 'read'),
        ('auto', None, 'directory'),
        ('map', {'passthrough': True, 'fd_passing': True}, 'passthrough'),
        ('map', {'passthrough': False, 'fd_passing': True}, 'read'),
        ('map', None, 'directory'),
        ('fd', {'passthrough': True, 'fd_passing': True}, 'fd'),
        ('fd', {'passthrough': True, 'fd_passing': False}, 'read'),
        ('fd', None, 'directory'),
        ('read', {'passthrough': True, 'fd_passing': True}, 'read'),
        ('read', None, 'read'),
    ],
)
def test_which_way(tmp_path: pathlib.Path, access: str, features: dict[str, bool] | None, way: str) -> None:
    if features is not None:
        (tmp_path / 'pipelines').mkdir()
        offer(tmp_path, **features)
    store = Store(str(tmp_path), 3, access)
    assert store.read('a') is None
    assert store.way == way


def serve_files(daemon: FakeDaemon) -> None:
    """Hands out what lies in the folder, as a real daemon would the memory."""

    def answer(s: socket.socket, r: fb.Request) -> None:
        staged = r.Op() == fb.Op.OpenStaged
        path = daemon.root / ('staging' if staged else 'pipelines') / r.Id().decode() / 'tensors' / r.Name().decode()
        if not path.exists() or path.stat().st_ino != r.Inode():
            s.sendall(reply(2, 'it was replaced'))
            return
        fd = os.open(path, os.O_RDWR if staged else os.O_RDONLY)
        socket.send_fds(s, [reply()], [fd])
        os.close(fd)

    daemon.answer = answer


@pytest.fixture
def served(root: pathlib.Path, daemon: FakeDaemon) -> FakeDaemon:
    from overmind import cache

    for name in ('pipelines', 'staging', 'locks'):
        (root / name).mkdir()
    offer(root, passthrough=False, fd_passing=True)
    cache._stores.clear()
    serve_files(daemon)
    return daemon


@pytest.fixture
def weights(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'weights.pt'
    torch.save({'weight': torch.arange(10_000.0)}, path)
    return str(path)


def loaded(weights: str) -> bool:
    value = load(torch.load, weights)
    return bool(torch.equal(value['weight'], torch.arange(10_000.0)))


def test_fill_and_hit_by_passed_memory(served: FakeDaemon, weights: str) -> None:
    assert loaded(weights)
    assert [op for op, *_ in served.requests] == [fb.Op.OpenStaged] * 2  # to write, and to check
    assert loaded(weights)
    assert [op for op, *_ in served.requests][2:] == [fb.Op.OpenPublished]
    assert [one.access for one in stats().loads] == ['fd', 'fd']


def test_the_file_stays_open_as_the_lease(served: FakeDaemon, weights: str) -> None:
    def open_arenas() -> list[str]:
        gc.collect()
        links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 and _is_open(n)]
        return sorted(link for link in links if link.startswith(str(served.root)) and link.endswith('.safetensors'))

    load(torch.load, weights)
    # The daemon of these tests has the files open as well, on a thread of its own, for as long as an answer takes.
    eventually(lambda: open_arenas() == [])
    value = load(torch.load, weights)
    eventually(lambda: len(open_arenas()) == 1)
    del value
    eventually(lambda: open_arenas() == [])


def _is_open(number: str) -> bool:
    return os.path.lexists(f'/proc/self/fd/{number}')


@pytest.mark.parametrize('when', ['filling', 'reading'])
def test_socket_that_fails_is_done_without(
    served: FakeDaemon, weights: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(logs.logger, 'warning', lambda text, *args: said.append(text % args))
    if when == 'reading':
        assert loaded(weights)
    served.answer = lambda s, _: s.sendall(reply(24, 'too many open files')) or None
    assert loaded(weights)
    assert loaded(weights)
    assert stats().loads[-1].access == 'read'
    assert stats().hits == (2 if when == 'reading' else 1)
    assert len(said) == 1
    assert 'copied instead of shared: too many open files' in said[0]


def test_memory_of_another_size(served: FakeDaemon, weights: str, tmp_path: pathlib.Path) -> None:
    load(torch.load, weights)
    (tmp_path / 'short').write_bytes(b'x' * 100)
    served.answer = give(tmp_path / 'short', reply())
    with pytest.raises(StoreError, match='has 100 bytes, the manifest says'):
        load(torch.load, weights)


def test_entry_that_goes_between_two_opens_is_a_miss(served: FakeDaemon, weights: str) -> None:
    import shutil

    load(torch.load, weights)
    (entry,) = (served.root / 'pipelines').iterdir()

    def evict(s: socket.socket, _: fb.Request) -> None:
        shutil.rmtree(entry, ignore_errors=True)
        s.sendall(reply(2, 'no such entry'))
        serve_files(served)

    served.answer = evict
    assert loaded(weights)
    assert (stats().hits, stats().misses) == (0, 2)
