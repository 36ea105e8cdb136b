"""The client of the control socket, against a daemon of a few lines that says what a test wants."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import flatbuffers
import pytest
import torch

from overmind import logs
from overmind.api import load, stats
from overmind.control import arena_fd
from overmind.control import client as module
from overmind.control.generated import control_generated as fb
from overmind.errors import StoreError
from overmind.store import Store

NAME = 'model.safetensors'
# What a daemon does with a connection, once it has the request.
Answer = Callable[[socket.socket, fb.Request], None]


def reply(code: int = 0, message: str = '', version: int = 1, identifier: bytes = b'OVMC') -> bytes:
    b = flatbuffers.Builder()
    text = b.CreateString(message)
    fb.ReplyStart(b)
    fb.ReplyAddVersion(b, version)
    fb.ReplyAddCode(b, code)
    fb.ReplyAddMessage(b, text)
    b.FinishSizePrefixed(fb.ReplyEnd(b), identifier)
    return bytes(b.Output())


class FakeDaemon:
    """``control`` of a root folder; a request is answered by ``answer``, and kept."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path) -> None:
        self.root, self.requests, self.connections = root, [], 0
        self.answer: Answer = lambda s, r: None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / 'socket'))
        self._listener.listen()
        os.symlink(folder / 'socket', root / 'control')
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                s, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with s:
                message = s.recv(module.MAX_MESSAGE)
                if not message:
                    continue
                request = fb.Request.GetRootAs(message, 4)
                self.requests.append((request.Op(), request.Id(), request.Name(), request.Inode()))
                self.answer(s, request)

    def close(self) -> None:
        """Once the answer that is under way is done with its descriptors."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[FakeDaemon]:
    root = tmp_path / 'root'
    root.mkdir(exist_ok=True)
    before = len(os.listdir('/proc/self/fd'))
    fake = FakeDaemon(root, tmp_path)
    yield fake
    fake.close()
    gc.collect()
    eventually(lambda: len(os.listdir('/proc/self/fd')) == before)


def ask(daemon: FakeDaemon, seconds: float = 5) -> int:
    return arena_fd(str(daemon.root), 'pipelines', 'a', NAME, 7, seconds)


def give(path: str | os.PathLike[str], message: bytes, count: int = 1) -> Answer:
    def answer(s: socket.socket, _: object) -> None:
        fds = [os.open(path, os.O_RDONLY) for _ in range(count)]
        socket.send_fds(s, [message], fds)
        for fd in fds:
            os.close(fd)

    return answer


def test_a_descriptor_that_no_child_inherits(daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / 'file').write_bytes(b'content')
    daemon.answer = give(tmp_path / 'file', reply())
    fd = ask(daemon)
    assert os.pread(fd, 100, 0) == b'content'
    assert not os.get_inheritable(fd)
    os.close(fd)
    os.close(arena_fd(str(daemon.root), 'staging', 'b', NAME, 8, 5))
    assert daemon.requests == [
        (fb.Op.OpenPublished, b'a', NAME.encode(), 7),
        (fb.Op.OpenStaged, b'b', NAME.encode(), 8),
    ]


def test_request_is_what_the_daemon_reads() -> None:
    """The same bytes as those that its own tests decode hold the same values."""
    golden = pathlib.Path(__file__).parents[3] / 'schema' / 'testdata' / 'sample.request'
    for message in (
        golden.read_bytes(),
        module._request('staging', 'sd-turbo-0123456789ab', 'unet.safetensors', 3 << 28),
    ):
        assert struct.unpack_from('<I', message)[0] == len(message) - 4
        assert fb.Request.RequestBufferHasIdentifier(message, 0, True)
        r = fb.Request.GetRootAs(message, 4)
        assert (r.Version(), r.Op(), r.Id(), r.Name(), r.Inode()) == (
            1,
            fb.Op.OpenStaged,
            b'sd-turbo-0123456789ab',
            b'unet.safetensors',
            3 << 28,
        )


def test_reply_of_the_daemon() -> None:
    golden = pathlib.Path(__file__).parents[3] / 'schema' / 'testdata' / 'sample.reply'
    assert module._reply(golden.read_bytes(), 'socket') == (2, 'no such entry')


def test_gone(daemon: FakeDaemon) -> None:
    daemon.answer = lambda s, _: s.sendall(reply(2, 'no such entry')) or None
    with pytest.raises(FileNotFoundError) as caught:
        ask(daemon)
    assert caught.value.filename == str(daemon.root / 'pipelines' / 'a' / 'tensors' / NAME)


def test_refused(daemon: FakeDaemon) -> None:
    daemon.answer = lambda s, _: s.sendall(reply(1, 'not the owner')) or None
    with pytest.raises(PermissionError, match='not the owner'):
        ask(daemon)


def test_refused_with_a_descriptor(daemon: FakeDaemon) -> None:
    daemon.answer = give(os.devnull, reply(1))
    with pytest.raises(PermissionError):
        ask(daemon)


@pytest.mark.parametrize('count', [0, 2, 3, 50])
def test_other_than_one_descriptor(daemon: FakeDaemon, count: int) -> None:
    daemon.answer = give(os.devnull, reply(), count)
    with pytest.raises(StoreError, match='without a file descriptor'):
        ask(daemon)


@pytest.mark.parametrize(
    'message',
    [
        b'x',
        b'\0\0\0\0',
        b'\x08\0\0\0\x08\0\0\0OVMC',
        reply()[:-1],
        reply() + b'x',
        reply(version=2),
        reply(identifier=b'NOPE'),
        b'\xff' * 100,
        b'x' * 5000,
    ],
)
def test_garbage(daemon: FakeDaemon, message: bytes) -> None:
    daemon.answer = give(os.devnull, message)
    with pytest.raises(StoreError, match='cannot be read'):
        ask(daemon)


def test_every_damaged_byte(daemon: FakeDaemon) -> None:
    good = reply(2, 'no such entry')
    for n in range(len(good)):
        for bits in (1, 0x80, 0xFF):
            damaged = bytearray(good)
            damaged[n] ^= bits
            try:
                code, text = module._reply(bytes(damaged), 'socket')
            except StoreError:
                continue
            assert isinstance(code, int)
            assert isinstance(text, str)


def test_closed_at_once_is_tried_again(daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    def third(s: socket.socket, r: fb.Request) -> None:
        if daemon.connections == 3:
            give(os.devnull, reply())(s, r)

    daemon.answer = third
    os.close(ask(daemon))
    assert daemon.connections == 3


def test_never_any_room(daemon: FakeDaemon) -> None:
    start = time.monotonic()
    with pytest.raises(StoreError, match='does not take a request'):
        ask(daemon, 0.3)
    assert time.monotonic() - start > 0.1


def test_silent_daemon(daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.answer = lambda s, _: go_on.wait() and None
    with pytest.raises(StoreError, match='hangs'):
        ask(daemon, 0.3)
    go_on.set()


def test_no_socket(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreError, match='control cannot be read'):
        arena_fd(str(tmp_path), 'pipelines', 'a', NAME, 7, 1)
    (tmp_path / 'control').symlink_to(tmp_path / 'nowhere')
    with pytest.raises(StoreError, match=r'cannot be reached: No such .*; in a container: --control-dir'):
        arena_fd(str(tmp_path), 'pipelines', 'a', NAME, 7, 1)
    (tmp_path / 'nowhere').write_bytes(b'')
    with pytest.raises(StoreError, match='cannot be reached'):
        arena_fd(str(tmp_path), 'pipelines', 'a', NAME, 7, 1)


def test_dead_daemon(tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(tmp_path / 'socket'))
    (tmp_path / 'control').symlink_to(tmp_path / 'socket')
    with pytest.raises(StoreError, match='cannot be reached: Connection refused'):
        arena_fd(str(tmp_path), 'pipelines', 'a', NAME, 7, 1)


@pytest.mark.parametrize('depth', [1, 60])
def test_relative_link(daemon: FakeDaemon, tmp_path: pathlib.Path, depth: int) -> None:
    """As where the socket lies beside the mount: it is found under whatever name the root has, however long that is."""
    daemon.answer = give(os.devnull, reply())
    (daemon.root / 'control').unlink()
    (daemon.root / 'control').symlink_to('../socket')
    far = tmp_path.joinpath(*['x' * 20] * depth)
    far.mkdir(parents=True)
    (far / 'cache').symlink_to(tmp_path)
    for root in (daemon.root, far / 'cache' / 'root'):
        os.close(arena_fd(str(root), 'pipelines', 'a', NAME, 7, 5))
    assert len(str(far)) > module._MAX_ADDRESS or depth == 1


def test_socket_below_a_folder_that_is_gone(tmp_path: pathlib.Path) -> None:
    (tmp_path / 'control').symlink_to('x' * 200 + '/socket')
    with pytest.raises(StoreError, match=r'cannot be reached: No such file'):
        arena_fd(str(tmp_path), 'pipelines', 'a', NAME, 7, 1)


def test_socket_of_another_user(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.answer = give(os.devnull, reply())
    other = struct.Struct('=iII')
    monkeypatch.setattr(module, '_CREDENTIALS', Lying(other, (1, os.geteuid() + 4711, 0)))
    with pytest.raises(StoreError, match=f'served by uid {os.geteuid() + 4711}'):
        ask(daemon)
    assert daemon.requests == []
    monkeypatch.setattr(module, '_CREDENTIALS', Lying(other, (1, 0, 0)))
    os.close(ask(daemon))


class Lying:
    def __init__(self, real: struct.Struct, credentials: tuple[int, int, int]) -> None:
        self.size, self._credentials = real.size, credentials

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return self._credentials


# ---- the store on such a daemon: a plain directory with a status and a socket


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


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
