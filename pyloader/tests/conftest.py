"""Shared by the loader's tests. They run with OVERMIND_STRICT=1 unless a test takes it away."""

from __future__ import annotations

import pathlib

import pytest


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
