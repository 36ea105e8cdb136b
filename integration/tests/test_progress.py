"""The line on a terminal that says why a load takes so long."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness.daemon import Daemon
from integration.harness.holdings import open_files, wait_until
from integration.tests.conftest import ForkChild

pytestmark = pytest.mark.usefixtures('holdings')


class Terminal:
    """A pseudo-terminal: ``fd`` is for a child's standard error."""

    def __init__(self) -> None:
        self._ours, self.fd = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('4H', 25, 120, 0, 0))
        self.text = ''

    def read_until(self, words: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while words not in self.text:
            left = until - time.monotonic()
            assert left > 0, f'{words!r} is not in {self.text!r}'
            if select.select([self._ours], [], [], left)[0]:
                self.text += os.read(self._ours, 4096).decode()

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.fd)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made = [Terminal() for _ in range(2)]
    yield made
    for terminal in made:
        terminal.close()


def test_line_is_shown_on_a_terminal_only(
    daemon: Daemon, fork_child: ForkChild, tmp_path: Path, terminals: list[Terminal]
) -> None:
    """Those without a terminal begin first, so that they are past their two seconds when the others show their line."""
    (tmp_path / 'wait').touch()
    variables = {'OVERMIND_STRICT': '1', 'SIGNS': str(tmp_path)}
    silent = [fork_child(daemon.root, **variables) for _ in range(2)]
    filler, waiter = (fork_child(daemon.root, stderr=terminal.fd, **variables) for terminal in terminals)
    silent[0].send('load held_up a')
    filler.send('load held_up b')
    wait_until(lambda: len(list(tmp_path.glob('begun-*'))) == 2, 'a load has not begun')
    silent[1].send('load held_up b')
    wait_until(lambda: any('/locks/' in name for name in open_files(silent[1].pid)), 'a process does not wait')
    waiter.send('load held_up b')
    terminals[0].read_until('loading held_up-')
    terminals[1].read_until('waiting for another process to load held_up-')
    (tmp_path / 'wait').unlink()
    answers = [child.read() for child in (*silent, filler, waiter)]
    assert [(a['hits'], a['misses']) for a in answers] == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert [child.stderr for child in silent] == ['', '']


def test_nothing_is_shown_of_a_short_load(daemon: Daemon, fork_child: ForkChild, terminals: list[Terminal]) -> None:
    child = fork_child(daemon.root, stderr=terminals[0].fd, OVERMIND_STRICT='1')
    assert child.ask('load assorted')['misses'] == 1
    os.write(terminals[0].fd, b'the end')
    terminals[0].read_until('the end')
    assert terminals[0].text == 'the end'
