"""Every way in which the cache can fail: the call succeeds with one warning, and with OVERMIND_STRICT=1 it raises."""

from __future__ import annotations

import gc
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from failing import Falls, held_open, make

from overmind import cache, locks
from overmind.api import load, stats
from overmind.errors import OvermindError


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.save({'weight': torch.arange(6.0)}, path)
    return str(path)


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    yield
    gc.collect()  # what a strict call raised may be part of a cycle of pytest's
    assert not locks.held
    assert not held_open('/root/locks/')
    assert not held_open('/root/staging/')


@pytest.fixture
def calls(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    caplog.set_level(logging.INFO, 'loader-calls')
    return lambda: sum(r.name == 'loader-calls' for r in caplog.records)


@pytest.fixture
def falls_back(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Falls:
    """A check for one call: raises when strict, then succeeds twice with one warning, and says why in the reasons."""

    def check(words: str, fn: Callable[..., Any], *args: Any, outcome: str = 'bypass') -> Any:
        monkeypatch.setenv('OVERMIND_STRICT', '1')
        with pytest.raises(OvermindError, match=words):
            load(fn, *args)
        assert stats().loads[-1].outcome == 'bypass'
        monkeypatch.delenv('OVERMIND_STRICT')
        cache._given_up.clear()
        caplog.clear()
        result = load(fn, *args)
        assert stats().loads[-1].outcome == outcome
        assert words in stats().loads[-1].reason
        if outcome == 'bypass':
            load(fn, *args)
        said = [r.getMessage() for r in caplog.records if r.name == 'overmind' and r.levelno >= logging.WARNING]
        assert len(said) == 1, said
        assert words in said[0]
        assert fn.__name__ in said[0]
        monkeypatch.setenv('OVERMIND_STRICT', '1')
        return result

    return check


@pytest.fixture
def entry(root: pathlib.Path, checkpoint: str) -> pathlib.Path:
    load(make, checkpoint)
    (found,) = (root / 'pipelines').iterdir()
    return found
