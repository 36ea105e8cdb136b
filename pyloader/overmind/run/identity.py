"""What has to be equal between a caller and its warm parent."""

from __future__ import annotations

import contextlib
import os
import sys
from _blake2 import blake2b  # hashlib would load OpenSSL

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# They describe the terminal and the session that a call comes from; a child gets the caller's. No library reads them
# while it is imported.
HARMLESS = frozenset(
    (
        'COLUMNS',
        'GPG_TTY',
        'INVOCATION_ID',
        'ITERM_SESSION_ID',
        'JOURNAL_STREAM',
        'LINES',
        'MEMORY_PRESSURE_WATCH',
        'MEMORY_PRESSURE_WRITE',
        'OLDPWD',
        'OVERMIND_RUN_IDLE',
        'OVERMIND_RUN_MAX',
        'PWD',
        'PYTEST_CURRENT_TEST',
        'SHLVL',
        'SSH_CLIENT',
        'SSH_CONNECTION',
        'SSH_TTY',
        'STY',
        'SYSTEMD_EXEC_PID',
        'TERM_SESSION_ID',
        'TMUX',
        'TMUX_PANE',
        'WINDOW',
        'WINDOWID',
        'XDG_SESSION_ID',
        'XDG_VTNR',
        '_',
    )
)
_STATUS = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
_NAMESPACES = ('cgroup', 'ipc', 'mnt', 'net', 'pid_for_children', 'time_for_children', 'user', 'uts')


def interpreter() -> str:
    """What ``python`` is beside this script: in a virtual environment its python, not python3.11."""
    python = os.path.join(os.path.dirname(sys.executable), 'python')
    try:
        return python if os.path.samefile(python, sys.executable) else sys.executable
    except OSError:
        return sys.executable


def standing() -> list[str]:
    """What the kernel keeps of this process that a forked child of another process could not take over."""
    with open('/proc/self/status', encoding='utf-8', errors='surrogateescape') as file:
        lines = [line.strip() for line in file]
    parts = [line for line in lines if line.split(':')[0] in _STATUS]
    with open('/proc/self/cgroup', encoding='utf-8', errors='surrogateescape') as file:
        parts += [f'cgroup {line.strip()}' for line in file]
    parts += [f'namespace {os.readlink(f"/proc/self/ns/{name}")}' for name in _NAMESPACES if _has(name)]
    parts.append(f'processors {sorted(os.sched_getaffinity(0))}, scheduling {os.sched_getscheduler(0)}')
    root = os.stat('/')
    parts.append(f'root {root.st_dev} {root.st_ino}')
    for name in ('personality', 'attr/current'):
        with contextlib.suppress(OSError), open(f'/proc/self/{name}', 'rb') as raw:
            parts.append(f'{name} {raw.read()!r}')
    return parts


def _has(namespace: str) -> bool:
    return os.path.lexists(f'/proc/self/ns/{namespace}')


def digest(python: str, words: Sequence[str], environment: Mapping[str, str], folder: str) -> str:
    """The name of the parent for this interpreter, these options and this program, in this environment and folder."""
    info = os.stat(python)
    parts = [python, str(info.st_ino), str(info.st_mtime_ns), sys.version, sys.prefix, os.path.dirname(__file__)]
    parts += [*words, folder, *standing()]
    parts += [f'{name}={value}' for name, value in sorted(environment.items()) if name not in HARMLESS]
    return _hash(parts)


def program(words: Sequence[str], folder: str) -> str:
    """The name under which it is kept what a program imports: whatever the environment and the options are."""
    words = words if words[0] == '-m' else [os.path.join(folder, words[0])]
    return _hash([sys.prefix, sys.version, *words, folder if words[0] == '-m' else ''])


def _hash(parts: Sequence[str]) -> str:
    text = '\0'.join(parts).encode('utf-8', 'surrogateescape')
    return blake2b(text, digest_size=8).hexdigest()
