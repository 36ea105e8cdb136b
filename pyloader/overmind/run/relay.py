"""The caller's side of a running program: its signals, its terminal, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import termios
import tty

from overmind.run import messages

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PASSED = ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2', 'SIGTSTP', 'SIGWINCH', 'SIGCONT', 'SIGALRM')
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
_CHUNK = 1 << 16


class Relay:
    """Carries all that comes, until the program ends. Signals are collected from the start."""

    def __init__(self, ignored: list[int]) -> None:
        self._connection: socket.socket
        self._terminal: Terminal | None = None
        self._signals: list[int] = []
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for name in _PASSED:
            number = getattr(signal, name)
            if number not in ignored:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._signals.append(number)

    def answer(self, connection: socket.socket, terminal: Terminal | None) -> tuple[Any, ...] | None:
        """The first that the keeper says. A signal ends this process meanwhile: no program has started yet."""
        self._connection, self._terminal = connection, terminal
        while True:
            ready, _, _ = select.select([connection.fileno(), self._woken], [], [])
            if connection.fileno() in ready:  # first: a signal may be meant for the program that has just started
                return messages.receive(connection)
            self._clear()
            while self._signals:
                number = self._signals.pop(0)
                if number == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif number not in (signal.SIGCONT, signal.SIGWINCH):
                    end_as(number)

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def run(self) -> NoReturn:
        """Ends this process as the program ended."""
        status: int | None = None
        with self._terminal or contextlib.nullcontext():
            while status is None:
                status = self._step()
            if self._terminal is not None:
                self._terminal.drain()
        end_as(status)

    def _step(self) -> int | None:
        reading: list[Any] = [self._connection, self._woken]
        writing: list[int] = []
        if self._terminal is not None:
            reading += self._terminal.readable()
            writing += self._terminal.writable()
        ready, writable, _ = select.select(reading, writing, [])
        self._clear()
        while self._signals:
            self._pass(self._signals.pop(0))
        if self._terminal is not None:
            self._terminal.carry([*ready, *writable])
        return self._hear() if self._connection in ready else None

    def _pass(self, number: int) -> None:
        if self._terminal is not None and number in (signal.SIGWINCH, signal.SIGCONT):
            self._terminal.adapt()
            return
        group = number in _OF_TERMINALS and any(os.isatty(fd) for fd in (0, 1, 2))
        with contextlib.suppress(OSError):
            messages.send(self._connection, 'signal', int(number), group)

    def _hear(self) -> int | None:
        words = messages.receive(self._connection)
        if words is None:
            return int(signal.SIGKILL)  # the keeper was killed, and the program with it
        if words[0] == 'ended':
            return int(words[1])
        if words[0] == 'stopped':
            self._stop()
        return None

    def _stop(self) -> None:
        """As the program did. Whoever lets this process go on does so for the program too."""
        if self._terminal is not None:
            self._terminal.restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._terminal is not None:
            self._terminal.adapt()
        with contextlib.suppress(OSError):
            messages.send(self._connection, 'signal', int(signal.SIGCONT), True)


def end_as(status: int) -> NoReturn:
    """End with the wait status of another process."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


class Terminal:
    """The caller's terminal on 0 and 1, and the new one that the program has."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self._saved = termios.tcgetattr(0)
        self._raw = False
        self._closed = False  # by all processes on the other side
        self._to_program = b''
        termios.tcsetattr(self.slave, termios.TCSANOW, self._saved)
        self._copy_size()

    def __enter__(self) -> Terminal:
        os.set_blocking(self.master, False)
        self.adapt()
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def close(self) -> None:
        os.close(self.master)

    def adapt(self) -> None:
        """After a start, a stop or a change of size. A background job leaves the terminal as it is."""
        self._copy_size()
        if not self._raw and self._in_foreground():
            self._saved = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            self._raw = True

    def restore(self) -> None:
        if self._raw:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            self._raw = False

    def readable(self) -> list[int]:
        found = [] if self._closed else [self.master]
        return [*found, 0] if self._raw and not self._to_program else found

    def writable(self) -> list[int]:
        return [self.master] if self._to_program else []

    def carry(self, ready: list[Any]) -> None:
        if self._raw and 0 in ready:
            self._from_caller()
        if self.master in ready:
            self._from_program()
        if self._to_program:
            try:
                self._to_program = self._to_program[os.write(self.master, self._to_program) :]
            except BlockingIOError:
                pass
            except OSError:
                self._to_program = b''

    def drain(self) -> None:
        """What the program wrote before it ended; the end of it is when no process has the terminal open."""
        self._closed = False
        while not self._closed and select.select([self.master], [], [], 0.2)[0]:
            self._from_program()

    def _from_caller(self) -> None:
        try:
            self._to_program = os.read(0, _CHUNK)
        except OSError:
            self._to_program = b''
        if not self._to_program:
            self._raw = False  # the terminal is gone, and SIGHUP comes

    def _from_program(self) -> None:
        try:
            data = os.read(self.master, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b''
        self._closed = not data
        while data:
            data = data[os.write(1, data) :]

    def _copy_size(self) -> None:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, b'\0' * 8)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return True  # not the controlling terminal: nobody else can be in front
