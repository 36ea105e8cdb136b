"""The caller of a warm parent. What that cannot do is done by plain Python, in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from overmind.run import identity, messages
from overmind.run.folders import NoFolder, runtime, state
from overmind.run.options import Call, why_plain
from overmind.run.relay import Relay, Terminal
from overmind.run.starter import Launch, obtain

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

_MOST_TRIES = 3
_DEFAULT_MOST = 4
_DEFAULT_IDLE = 4 * 3600.0


class Unserved(Exception):
    """Why it has to be plain Python."""


def run(call: Call) -> NoReturn:
    """Run a program as this process would: it ends as the program ends."""
    inherited = _inherited()
    try:
        _run_warm(call, inherited)
    except Unserved as e:
        plain(call, str(e))


def plain(call: Call, why: str) -> NoReturn:
    """Become plain Python."""
    sys.stderr.write(f'overmind run: as plain python: {why}\n')
    sys.stderr.flush()
    python = identity.interpreter()
    os.execv(python, [python, *call.words])


def launch_for(call: Call) -> Launch:
    """The warm parent of this call, whether it is there or not. Unserved if there can be none."""
    why = why_plain(call, os.environ)
    if why is not None:
        raise Unserved(why)
    if not _limit():
        raise Unserved('OVERMIND_RUN_MAX is 0')
    python, environment = identity.interpreter(), dict(os.environ)
    try:
        cwd = os.getcwd()
        digest = identity.digest(python, [*call.options, *call.program], environment, cwd)
        folder = os.path.join(runtime(), digest)
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except (OSError, NoFolder) as e:
        raise Unserved(str(e)) from e
    return Launch(
        python=python,
        options=call.options,
        program=call.program,
        environment=environment,
        cwd=cwd,
        folder=folder,
        learnt=os.path.join(state(), identity.program(call.program, cwd)),
        root=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        idle_seconds=_number('OVERMIND_RUN_IDLE', _DEFAULT_IDLE),
    )


def _limit() -> int:
    return int(_number('OVERMIND_RUN_MAX', _DEFAULT_MOST))


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, '').strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float('inf'):
        sys.exit(f'{name}={text!r} is not a number of 0 or more')
    return value


def _inherited() -> list[int]:
    """The file descriptors that an executed program would have."""
    found = []
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):  # that of the listing
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)


def _run_warm(call: Call, inherited: list[int]) -> NoReturn:
    launch = launch_for(call)
    if len(inherited) > messages.most_fds():
        raise Unserved(f'{len(inherited)} file descriptors are open')
    request = _request(call, launch, inherited)
    relay, stale = Relay(request.ignored), None
    for _ in range(_MOST_TRIES):
        try:
            connection = obtain(launch, _limit(), stale)
        except OSError as e:
            raise Unserved(f'no warm parent could be started: {e}') from e
        if connection is None:
            continue
        answer = _ask(relay, connection, request, inherited)
        if answer is not None and answer[0] == 'started':
            relay.run()
        if answer is not None and answer[0] == 'refused':
            raise Unserved(answer[1])
        connection.close()
        stale = answer[2] if answer is not None else None
    raise Unserved(f'the warm parent does not start; see {launch.place.path("errors")}')


def _ask(
    relay: Relay, connection: socket.socket, request: messages.Request, inherited: list[int]
) -> tuple[Any, ...] | None:
    terminal = Terminal() if _has_terminal() else None
    request.terminal = terminal is not None
    fds = list(inherited)
    if terminal is not None:
        fds = [terminal.slave if _is_terminal(fd) else fd for fd in inherited]
    try:
        messages.send_request(connection, request, fds)
        answer = relay.answer(connection, terminal)
    except ConnectionError:
        answer = None
    except OSError as e:  # a limit of the size of files, for one
        raise Unserved(f'the call cannot be passed on: {e.strerror}') from e
    if terminal is not None:
        os.close(terminal.slave)
        if answer is None or answer[0] != 'started':
            terminal.close()
    return answer


def _has_terminal() -> bool:
    """Only where both are one: in a pipeline the terminal may be another program's, such as a pager's."""
    return _is_terminal(0) and _is_terminal(1)


def _is_terminal(fd: int) -> bool:
    """Whether this is the terminal of standard input."""
    try:
        return os.isatty(fd) and os.fstat(fd).st_rdev == os.fstat(0).st_rdev
    except OSError:
        return False


def _request(call: Call, launch: Launch, inherited: list[int]) -> messages.Request:
    import resource

    names = [name for name in dir(resource) if name.startswith('RLIMIT_')]
    limits = {int(getattr(resource, name)) for name in names}
    umask = os.umask(0o077)
    os.umask(umask)
    return messages.Request(
        program=call.program,
        arguments=call.arguments,
        options=call.options,
        environment=launch.environment,
        standing=identity.standing(),
        umask=umask,
        limits=[(which, *resource.getrlimit(which)) for which in sorted(limits)],
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        ignored=_ignored(),
        blocked=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        numbers=inherited,
        terminal=False,
    )


def _ignored() -> list[int]:
    """The signals that this process was started with as ignored; SIGPIPE and SIGXFSZ are ignored by any Python."""
    with open('/proc/self/status', encoding='ascii', errors='replace') as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith('SigIgn'))
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]
