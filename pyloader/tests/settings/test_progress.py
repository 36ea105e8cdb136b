"""The line that appears when something takes long."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from overmind import progress


class Terminal(io.StringIO):
    tty = True

    def isatty(self) -> bool:
        return self.tty


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress, 'sys', SimpleNamespace(stderr=stream))  # pytest puts its own on sys
    monkeypatch.setattr(progress, '_REFRESH_SECONDS', 0.0)
    return stream


def test_nothing_in_the_first_seconds(terminal: Terminal) -> None:
    with progress.Progress('waiting') as line:
        for _ in range(3):
            line.tick()
    assert terminal.getvalue() == ''


def test_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, 'DELAY_SECONDS', 0.0)
    with progress.Progress('waiting', total=2**20) as line:
        line.tick(2**19)
        line.tick()
    assert 'waiting:  50%' in terminal.getvalue()
    written = terminal.getvalue()
    line.tick(2**20)
    line.close()
    assert terminal.getvalue() == written


def test_background(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, 'DELAY_SECONDS', 0.01)
    monkeypatch.setattr(progress, '_REFRESH_SECONDS', 0.01)
    with progress.Progress('loading', background=True):
        until = time.monotonic() + 10
        while 'loading [' not in terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert 'loading [' in terminal.getvalue()


def test_the_time_counts_from_when_it_is_to_be_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, 'DELAY_SECONDS', 0.05)
    monkeypatch.setattr(progress, '_REFRESH_SECONDS', 0.0)
    yet = False
    with progress.Progress('loading', when=lambda: yet) as line:
        time.sleep(0.1)
        line.tick()
        yet = True
        line.tick()
        assert terminal.getvalue() == ''
        time.sleep(0.1)
        line.tick()
    assert 'loading [' in terminal.getvalue()


def test_not_on_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.tty = False
    monkeypatch.setattr(progress, 'DELAY_SECONDS', 0.0)
    with progress.Progress('waiting', background=True) as line:
        line.tick()
    assert terminal.getvalue() == ''


@pytest.mark.parametrize('stream', [None, io.BytesIO()])
def test_odd_streams(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(sys, 'stderr', stream)
    with progress.Progress('waiting') as line:
        line.tick()


def test_never_raises(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, 'DELAY_SECONDS', 0.0)
    monkeypatch.setitem(sys.modules, 'tqdm', None)
    with progress.Progress('waiting') as line:
        line.tick()
        line.tick()
