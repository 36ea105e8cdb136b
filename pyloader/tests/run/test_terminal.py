"""A program on a terminal, as a shell starts it: job control, sizes, raw input, /dev/tty."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from warmbench import SECONDS, WARM, Bench


class Screen:
    """A terminal of 30 lines and 90 columns, and the process that leads its session."""

    def __init__(self, bench: Bench, line: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(bench.work)
            os.execve(line[0], line, {**bench.environment, 'TERM': 'xterm', 'PS1': '$ ', 'HISTFILE': ''})
        self.resize(30, 90)
        self.text = ''
        self.ended: int | None = None

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('4H', lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until it comes; what came up to its end is dropped and returned."""
        until = time.monotonic() + SECONDS
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < until, f'no {pattern!r} in {self.text!r}'
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors='replace')
                except OSError:
                    raise AssertionError(f'ended without {pattern!r}: {self.text!r}') from None
        seen, self.text = self.text[: match.end()], self.text[match.end() :]
        return seen

    def rest(self) -> str:
        """All that is written to the end, and the exit code, in ``ended``."""
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 4096):
                self.text += data.decode(errors='replace')
        self.ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.text

    def close(self) -> None:
        if self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture(params=['python', 'warm'])
def command(bench: Bench, request: pytest.FixtureRequest) -> list[str]:
    """Every test of it is passed by python, too."""
    bench.write('quick.py', 'import toylib')
    return [sys.executable] if request.param == 'python' else WARM


@pytest.fixture
def screen(bench: Bench, command: list[str]) -> Iterator[Screen]:
    bench.write('app.py', PROGRAM)
    screen = Screen(bench, [*command, 'app.py'])
    yield screen
    screen.close()


PROGRAM = """
import os, signal, sys, termios, time, toylib, tty
print([os.isatty(fd) for fd in (0, 1, 2)], sys.stdout.line_buffering, os.tcgetpgrp(0) == os.getpgrp())
print(tuple(os.get_terminal_size()), os.ttyname(0) == os.ttyname(2))
with open('/dev/tty', 'r+b', buffering=0) as terminal: terminal.write(b'through /dev/tty\\n')
print('you said', input('say: '))
before = termios.tcgetattr(0)
tty.setcbreak(0)
print('press')
print('key', os.read(0, 1))
termios.tcsetattr(0, termios.TCSADRAIN, before)
try:
    print('waiting')
    while True: time.sleep(0.02)  # in input() a signal that comes right before the read waits for its end
except KeyboardInterrupt:
    print('interrupted')
try:
    input('end: ')
except EOFError:
    print('end of file')
sys.exit(7)
"""


def test_a_conversation(screen: Screen) -> None:
    screen.expect(r'\[True, True, True\] True True\r\n\(\d+, \d+\) True\r\nthrough /dev/tty\r\nsay: ')
    screen.type('hällo\n')
    screen.expect('hällo\r\nyou said hällo\r\n')
    screen.expect('press\r\n')
    screen.type('\x1b')
    screen.expect(r"key b'\\x1b'\r\n")
    screen.expect('waiting\r\n')
    screen.type('\x03')
    screen.expect('interrupted\r\n')
    screen.expect('end: ')
    screen.type('\x04')
    assert 'end of file' in screen.rest()
    assert screen.ended == 7


def test_the_size_follows(bench: Bench, command: list[str]) -> None:
    bench.write(
        'app.py',
        'import os, signal, time, toylib\n'
        'say = lambda *words: os.write(1, f"{words}\\n".encode())\n'
        'signal.signal(signal.SIGWINCH, lambda *a: say("size", *os.get_terminal_size()))\n'
        'say("waiting")\nwhile True: time.sleep(0.02)',
    )
    screen = Screen(bench, [*command, 'app.py'])
    try:
        screen.expect('waiting')
        screen.resize(11, 44)
        screen.expect("'size', 44, 11")
        screen.type('\x03')
        assert 'KeyboardInterrupt' in screen.rest()
        assert screen.ended == -signal.SIGINT
    finally:
        screen.close()


def test_job_control(bench: Bench, command: list[str]) -> None:
    """In an interactive shell: stop, background, foreground; the terminal is the shell's in between."""
    bench.write('app.py', 'import toylib\nwhile True: print("got", input("say: "))')
    shell = Screen(bench, ['/bin/bash', '--norc', '--noprofile', '-i'])
    try:
        shell.expect(r'\$ ')
        shell.type(' '.join([*command, 'app.py']) + '\n')
        shell.expect('say: ')
        shell.type('one\n')
        shell.expect('got one\r\nsay: ')
        shell.type('\x1a')
        shell.expect(r'Stopped.*\r\n')
        shell.type('stty -a | grep -o " echo \\| icanon"; echo still $((40 + 2))\n')
        shell.expect('icanon(.|\n)*still 42\r\n')
        shell.type('fg\n')
        shell.expect('app.py\r\n')
        shell.type('two\n')
        shell.expect('got two\r\n')
        shell.type('\x04')
        shell.expect(r'EOFError(.|\n)*\$ ')
        shell.type('echo code $?\n')
        shell.expect('code 1\r\n')
        shell.type('exit\n')
        shell.rest()
    finally:
        shell.close()


def test_curses(bench: Bench, command: list[str]) -> None:
    bench.write(
        'app.py',
        'import curses, toylib\ndef main(screen):\n    screen.addstr(2, 3, "drawn")\n    screen.refresh()\n'
        '    return screen.getmaxyx(), screen.getkey()\nprint(curses.wrapper(main))',
    )
    screen = Screen(bench, [*command, 'app.py'])
    try:
        screen.expect('drawn')
        screen.type('k')
        assert "'k')" in screen.rest()
        assert screen.ended == 0
    finally:
        screen.close()


def test_all_output_comes_before_the_end(bench: Bench, command: list[str]) -> None:
    bench.write('app.py', 'import toylib\nfor i in range(20000): print(i)')
    screen = Screen(bench, [*command, 'app.py'])
    try:
        assert screen.rest().split() == [str(i) for i in range(20000)]
        assert screen.ended == 0
    finally:
        screen.close()


def test_a_pipeline_leaves_the_terminal_alone(bench: Bench, command: list[str]) -> None:
    """With standard output in a pipe the terminal may be a pager's: it is passed on as it is."""
    bench.write(
        'app.py', 'import os, sys, toylib\nprint([os.isatty(fd) for fd in (0, 1, 2)], input(), file=sys.stderr)'
    )
    line = ' '.join([*command, 'app.py'])
    screen = Screen(bench, ['/bin/bash', '--norc', '--noprofile', '-c', f'{line} | cat; stty -a | grep -c " icanon"'])
    try:
        screen.type('typed\n')
        screen.expect(r'\[True, False, True\] typed\r\n')
        assert screen.rest().split() == ['1']
    finally:
        screen.close()


def test_the_terminal_is_restored_when_the_program_is_killed(bench: Bench, command: list[str]) -> None:
    bench.write('app.py', 'import os, toylib, tty\ntty.setraw(0)\nprint("pid", os.getpid(), flush=True)\ninput()')
    line = ' '.join([*command, 'app.py'])
    screen = Screen(bench, ['/bin/bash', '--norc', '--noprofile', '-c', f'{line}; echo code $?; stty sane'])
    try:
        pid = int(screen.expect(r'pid \d+').split()[-1])
        os.kill(pid, signal.SIGKILL)
        screen.expect('code 137')
        screen.rest()
    finally:
        screen.close()
