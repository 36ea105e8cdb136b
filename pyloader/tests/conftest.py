"""Shared by the loader's tests. They run with OVERMIND_STRICT=1 unless a test takes it away."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('OVERMIND_ROOT', 'OVERMIND_DISABLE', 'OVERMIND_AUTOSTART', 'OVERMIND_ACCESS'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('OVERMIND_STRICT', '1')
