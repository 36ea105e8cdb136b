"""The client of the control socket, against a daemon of a few lines that says what a test wants."""

from __future__ import annotations

import os
import pathlib
import socket
import struct
import threading
import time

import pytest
from fake import NAME, FakeDaemon, ask, give, reply

from overmind.control import arena_fd
from overmind.control import client as module
from overmind.control.generated import control_generated as fb
from overmind.errors import StoreError


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
