"""Asks the daemon for the memory of an arena (docs/protocol.md, "The control socket").

The answer is a file descriptor of the memory itself: a mapping of it is shared with everybody who has one, and does not
need the daemon any more. The arena's file in the mount stays the lease.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Literal

import flatbuffers

from overmind.control.generated import control_generated as fb
from overmind.errors import StoreError

VERSION = 1
MAX_MESSAGE = 4 + 4096
_MAX_ADDRESS = 107  # bytes of a path in struct sockaddr_un, without its end

Place = Literal['pipelines', 'staging']

_OPS = {'pipelines': fb.Op.OpenPublished, 'staging': fb.Op.OpenStaged}
_CREDENTIALS = struct.Struct('=iII')  # struct ucred: pid, uid, gid


def arena_fd(root: str, place: Place, id: str, name: str, inode: int, deadline: float) -> int:
    """The memory of ``<place>/<id>/tensors/<name>``, whose inode number in the mount is given; the caller closes it.

    Read-only where it is published, for writing too where it is staged. deadline is in seconds. Raises
    FileNotFoundError where the arena is gone or another one is there now, another OSError where the daemon refuses, and
    StoreError where the socket cannot be reached or trusted or does not speak this protocol.
    """
    link = os.path.join(root, 'control')
    try:
        # A relative link is one from the root, also where that is seen under another name than the daemon's.
        path = os.path.join(root, os.readlink(link))
    except OSError as e:
        raise StoreError(f'{link} cannot be read: {e.strerror}') from e
    request = _request(place, id, name, inode)
    until, pause = time.monotonic() + deadline, 0.002
    while True:
        fd = _ask(path, request, until, os.path.join(root, place, id, 'tensors', name))
        if fd is not None:
            return fd
        if time.monotonic() + pause > until:
            raise StoreError(f'{path} does not take a request within {deadline:g} s')
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _ask(path: str, request: bytes, until: float, file: str) -> int | None:
    """None where the daemon has too many connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(max(0.001, until - time.monotonic()))
        try:
            with _address(path) as address:
                s.connect(address)
            _check_peer(s, path)
            s.sendall(request)
            message, data, flags, _ = s.recvmsg(MAX_MESSAGE + 1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, ConnectionResetError, BrokenPipeError):
            return None
        except TimeoutError as e:
            raise StoreError(f'{path} does not answer; the daemon hangs') from e
        except OSError as e:
            hint = '; in a container: --control-dir, docs/containers.md' if isinstance(e, FileNotFoundError) else ''
            raise StoreError(f'{path} cannot be reached: {e.strerror or e}{hint}') from e
    fds = _descriptors(data)
    try:
        if not message:
            return None
        code, text = _reply(message, path)
        if code:
            raise OSError(code, text or os.strerror(code), file)
        if len(fds) != 1 or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise StoreError(f'{path} has answered without a file descriptor')
        return fds.pop()
    finally:
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """A path to the socket that an address holds: it may be longer here than where the daemon sees it."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS:
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f'/proc/self/fd/{fd}/{name}'
    finally:
        os.close(fd)


def _check_peer(s: socket.socket, path: str) -> None:
    """The link may lead anywhere; only root and this user may give us memory."""
    _, uid, _ = _CREDENTIALS.unpack(s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in (0, os.geteuid()):
        raise StoreError(f'{path} is served by uid {uid}, neither root nor this user')


def _descriptors(data: list[tuple[int, int, bytes]]) -> array.array[int]:
    fds = array.array('i')
    for level, kind, content in data:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return fds


def _request(place: Place, id: str, name: str, inode: int) -> bytes:
    b = flatbuffers.Builder(256)
    id_at, name_at = b.CreateString(id), b.CreateString(name)
    fb.RequestStart(b)
    fb.RequestAddVersion(b, VERSION)
    fb.RequestAddOp(b, _OPS[place])
    fb.RequestAddId(b, id_at)
    fb.RequestAddName(b, name_at)
    fb.RequestAddInode(b, inode)
    b.FinishSizePrefixed(fb.RequestEnd(b), b'OVMC')
    return bytes(b.Output())


def _reply(message: bytes, path: str) -> tuple[int, str]:
    """Code and text. The bytes may be anything; FlatBuffers reads them with bounds-checked calls."""
    try:
        (size,) = struct.unpack_from('<I', message)
        if size != len(message) - 4 or not fb.Reply.ReplyBufferHasIdentifier(message, 0, True):
            raise ValueError('not a frame')
        reply = fb.Reply.GetRootAs(message, 4)
        if reply.Version() != VERSION:
            raise ValueError(f'version {reply.Version()}, this loader speaks {VERSION}')
        text: Any = reply.Message()  # bytes, whatever the stubs say
        return reply.Code(), (text or b'').decode(errors='replace')
    except Exception as e:
        raise StoreError(f'{path} has answered what cannot be read: {e}') from e
