"""Which memory is page-locked, for how long, and what happens where the driver refuses."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch
from fake_layer import FakeLayer, pairs, same

from overmind import logs
from overmind.gpu import register
from overmind.gpu.register import spans

PAGE = mmap.PAGESIZE


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    messages: dict[str, str] = {}
    monkeypatch.setattr(logs, 'warn_once', messages.setdefault)
    monkeypatch.setattr(register, 'warn_once', messages.setdefault)
    return messages


def pieces_of(memory: Any, *ranges: tuple[int, int]) -> list[tuple[Any, Any]]:
    return [(torch.zeros(n, dtype=torch.uint8), memory[at : at + n]) for at, n in ranges]


@pytest.fixture
def memory() -> Any:
    """Sixteen pages that begin at a multiple of their size."""
    whole = torch.randint(1, 256, (32 * PAGE,), dtype=torch.uint8)
    start = -whole.data_ptr() % (16 * PAGE)
    return whole[start : start + 16 * PAGE]


def found(memory: Any, *ranges: tuple[int, int], limit: int = 1 << 30) -> list[tuple[int, int, int]]:
    base = memory.data_ptr()
    return [(a - base, n, len(p)) for a, n, p in spans(pieces_of(memory, *ranges), limit)]


def test_neighbours_are_one_span(memory: Any) -> None:
    assert found(memory, (100, 10), (5, 10), (110, PAGE), (3 * PAGE - 1, 1)) == [(0, 3 * PAGE, 4)]


def test_overlapping_ones_are_one_span(memory: Any) -> None:
    assert found(memory, (0, 5 * PAGE), (PAGE, 10), (PAGE + 5, 20)) == [(0, 5 * PAGE, 3)]


def test_gaps_are_not_locked(memory: Any) -> None:
    assert found(memory, (10, 10), (2 * PAGE + 5, 1)) == [(0, PAGE, 1), (2 * PAGE, PAGE, 1)]


def test_spans_have_a_limit(memory: Any) -> None:
    limit = 4 * PAGE
    assert found(memory, (7, 15 * PAGE), limit=limit) == [(i * limit, limit, 1) for i in range(4)]
    assert found(memory, (7, 4 * PAGE), (5 * PAGE, 9), limit=limit) == [(0, limit, 1), (limit, 2 * PAGE, 2)]
    assert found(memory, (PAGE, PAGE), (4 * PAGE, 5), limit=limit) == [(PAGE, PAGE, 1), (limit, PAGE, 1)]


def test_overlapping_ones_beyond_the_limit(memory: Any) -> None:
    """As two parameters over one storage are."""
    limit = 4 * PAGE
    ranges = (0, 10 * PAGE), (0, 10 * PAGE), (PAGE, 6 * PAGE)
    assert found(memory, *ranges, limit=limit) == [(0, limit, 3), (limit, limit, 3), (2 * limit, 2 * PAGE, 2)]


@pytest.mark.parametrize('limit', [PAGE, 4 * PAGE, 1 << 30])
def test_bytes_arrive_and_nothing_stays_locked(memory: Any, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(register, 'spans', lambda pairs: spans(pairs, limit))
    layer = FakeLayer()
    wanted = pieces_of(memory, (0, 3), (77, 5 * PAGE), (7 * PAGE, 100), (9 * PAGE + 3, 6 * PAGE)) + pairs(9, 70_000)
    register.copy(layer, wanted)
    assert same(wanted)
    assert layer.ever_locked
    assert not layer.locked
    assert layer.most_locked <= 2


def test_a_refusal_is_one_warning(memory: Any, said: dict[str, str]) -> None:
    layer = FakeLayer(refuse='CUDA_ERROR_NOT_SUPPORTED')
    wanted = pieces_of(memory, (0, 3), (2 * PAGE, 5 * PAGE), (9 * PAGE, 6 * PAGE))
    register.copy(layer, wanted)
    assert same(wanted)
    (message,) = said.values()
    assert 'CUDA_ERROR_NOT_SUPPORTED' in message
    assert 'OVERMIND_PIN=register' in message


def test_nothing_stays_locked_after_a_failure(memory: Any) -> None:
    layer = FakeLayer(fail_after=1)
    with pytest.raises(RuntimeError):
        register.copy(layer, pieces_of(memory, (0, 3), (2 * PAGE, 5), (9 * PAGE, 6)))
    assert len(layer.ever_locked) == 2
    assert not layer.locked
