"""Namespaces that a test makes, and how a process gets into them and becomes somebody else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_FLAGS = {'mnt': 0x20000, 'user': 0x10000000, 'pid': 0x20000000, 'net': 0x40000000, 'uts': 0x4000000, 'ipc': 0x8000000}
_PR_SET_PDEATHSIG = 1


class Space:
    """A process that only holds namespaces: ``unshare`` with options, and a script that furnishes them. Use it as a
    context manager."""

    def __init__(self, options: Sequence[str], script: str, prefix: Sequence[str] = ()) -> None:
        self._line = [*prefix, 'unshare', *options, 'sh', '-euc', f'{script}\necho furnished\nexec cat']

    def __enter__(self) -> Space:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != 'furnished\n':
            _, said = self._process.communicate()
            raise OSError(said.strip())
        children = Path(f'/proc/{self._process.pid}/task/{self._process.pid}/children').read_text().split()
        self.pid = int(children[0]) if children else self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def line(self, *words: str, uid: int | None = None, kinds: str = 'mnt') -> list[str]:
        """A command line that runs in there, as a user."""
        inside = ['nsenter', f'--target={self.pid}', *[f'--{_LONG[kind]}' for kind in kinds.split(',')]]
        user = [] if uid is None else ['setpriv', f'--reuid={uid}', f'--regid={uid}', '--clear-groups']
        return [*inside, *user, *words]


_LONG = {'mnt': 'mount', 'user': 'user', 'pid': 'pid', 'net': 'net', 'uts': 'uts', 'ipc': 'ipc'}


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f'{what}: {os.strerror(ctypes.get_errno())}')


def enter(pid: str, kinds: str) -> dict[str, Any]:
    """The command ``enter PID mnt,user,...``: into namespaces of another process, as one that is new there."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.pidfd_open(int(pid))
    flags = sum(_FLAGS[kind] for kind in kinds.split(','))
    _checked(libc.setns(fd, ctypes.c_int(flags)), 'setns')
    os.close(fd)
    if 'pid' not in kinds.split(','):
        return {}
    child = os.fork()  # who enters a PID namespace stays out, only its children are in it
    if child:
        for number in (0, 1):
            os.close(number)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return {'pid': os.getpid()}


def become(uid: str, gid: str = '') -> dict[str, Any]:
    """The command ``become UID``."""
    number, group = int(uid), int(gid or uid)
    with contextlib.suppress(PermissionError):  # where a user namespace denies it there are none
        os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(number, number, number)
    return {'uid': os.geteuid()}


SPACES: dict[str, Callable[..., dict[str, Any]]] = {'enter': enter, 'become': become}
