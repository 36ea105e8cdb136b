"""Shared by the loader's tests. They run with OVERMIND_STRICT=1 unless a test takes it away."""

from __future__ import annotations

import pathlib
import signal

import pytest


def pytest_configure() -> None:
    """As in a terminal: what a script runs in the background starts with these ignored, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('OVERMIND_ROOT', 'OVERMIND_DISABLE', 'OVERMIND_AUTOSTART', 'OVERMIND_ACCESS'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('OVERMIND_STRICT', '1')


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A plain directory as the cache of a process that has loaded nothing and warned of nothing."""
    from overmind import cache, logs, statistics

    folder = tmp_path / 'root'
    folder.mkdir()
    monkeypatch.setenv('OVERMIND_ROOT', str(folder))
    monkeypatch.setattr(cache, '_given_up', {})
    monkeypatch.setattr(logs, '_warned', set())
    monkeypatch.setattr(statistics, '_stats', statistics.Stats())
    return folder
