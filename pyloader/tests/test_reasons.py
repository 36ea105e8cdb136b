"""Each bypass says why, and names the argument or the object."""

from __future__ import annotations

import logging
import pathlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overmind import cache
from overmind.api import load, stats
from overmind.structure.where import place

LINES = (line for line in 'abc')


def plain(value: Any) -> int:
    return 1


def reads_lines(value: Any) -> Any:
    return next_line()


def next_line() -> str:
    return next(LINES)


def deep(levels: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(levels):
        out = [out]
    return out


def loop() -> list[Any]:
    out: list[Any] = []
    out.append(out)
    return out


@pytest.fixture(autouse=True)
def _relaxed(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')


ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (object, 'argument value: an object of type object cannot be compared between processes'),
    (lambda: {'a': [1, threading.Lock()]}, "argument value['a'][1]: an object of type lock cannot be compared"),
    (lambda: nn.Linear(1, 1), 'argument value: Linear did not come from the cache'),
    (lambda: threading, 'argument value: the Python module threading cannot be compared'),
    (loop, 'argument value[0]: a list that contains itself'),
    (lambda: deep(150), 'argument value[0][0][0][0]...[0][0][0][0]: nested deeper than 100 levels'),
    (lambda: torch.empty(1, device='meta'), 'argument value: Tensor on meta did not come from the cache'),
    (lambda: torch.zeros(1 << 19), 'argument value: a tensor of 2097152 bytes did not come from the cache'),
    (lambda: np.zeros(1 << 19), 'argument value: an array of 4194304 bytes; arrays are compared up to 1048576'),
    (lambda: np.array([object()]), 'argument value: a numpy array of Python objects cannot be compared'),
    (lambda: next_line, 'argument value -> test_reasons:next_line, global LINES: an object of type generator cannot'),
]


@pytest.mark.parametrize(('make', 'words'), ARGUMENTS, ids=[w.partition(': ')[2][:40] for _, w in ARGUMENTS])
def test_arguments(make: Callable[[], Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    for patched in (True, False):
        caplog.clear()
        assert cache.cached_call(plain, (make(),), {}, patched) == 1
        assert stats().reasons[-1].startswith(f'test_reasons.plain: {words}')
        warned = [r for r in caplog.records if r.name == 'overmind' and r.levelno >= logging.WARNING]
        assert len(warned) == (0 if patched else 1)


def test_the_loader_itself() -> None:
    load(reads_lines, 1)
    words = 'loader -> test_reasons:reads_lines, global next_line -> test_reasons:next_line, global LINES: an object'
    assert stats().reasons[-1].startswith(f'test_reasons.reads_lines: {words} of type generator cannot')


class Node:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def model_with_a_log(x: int) -> Any:
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    model[1][0].log = open('/dev/null')  # noqa: SIM115
    return {'unet': model}


def with_generator(x: int) -> Any:
    return [(i for i in range(3))]


def with_socket(x: int) -> Any:
    return Node(parts=(1, Node(sock=socket.socket())))


def with_graph(x: int) -> Any:
    return {'w': torch.ones(1, requires_grad=True) * 2}


def with_hook(x: int) -> Any:
    t = torch.ones(1, requires_grad=True)
    t.register_hook(abs)
    return Node(weight=t)


def in_inference_mode(x: int) -> Any:
    with torch.inference_mode():
        return [torch.ones(2)]


def too_deep(x: int) -> Any:
    return deep(100_000)


class Unsettled:
    def __getstate__(self) -> dict[str, int]:
        return {'a': 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError('only here')


def unsettled(x: int) -> Any:
    return Unsettled()


def unwilling(x: int) -> Any:
    class Unwilling:
        def __reduce__(self) -> Any:
            raise RuntimeError('no way')

    return {'x': Unwilling()}


RESULTS: list[tuple[Callable[[int], Any], str]] = [
    (model_with_a_log, "result['unet'][1][0].log: a _io.TextIOWrapper cannot be kept: it is open in this process"),
    (with_generator, 'result[0]: a generator cannot be kept: it is open in this process'),
    (with_socket, 'result.parts[1].sock, a socket.socket, cannot be kept: TypeError: cannot pickle'),
    (with_graph, "result['w']: a tensor that is the result of a computation with gradients"),
    (with_hook, 'result.weight: a tensor with gradient hooks'),
    (in_inference_mode, 'result[0]: a tensor made in inference mode'),
    (too_deep, 'the result, a list, is nested too deeply'),
    (unsettled, 'the result (test_reasons.Unsettled) cannot be rebuilt: ValueError: only here'),
    (unwilling, "result['x'], a test_reasons.unwilling.<locals>.Unwilling, cannot be kept: RuntimeError: no way"),
]


@pytest.mark.parametrize(('fn', 'words'), RESULTS, ids=[fn.__name__ for fn, _ in RESULTS])
def test_results(fn: Callable[[int], Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    load(fn, 1)
    (reason,) = stats().reasons
    assert reason.startswith(f'test_reasons.{fn.__name__}: {words}')
    (warning,) = [r.getMessage() for r in caplog.records if r.name == 'overmind']
    assert words in warning


def changes(inner: Any, other: int) -> Any:
    inner[0].note = 1
    return [inner]


def linear(x: int) -> Any:
    torch.manual_seed(x)
    return nn.Sequential(nn.Linear(1, 1))


def made_up(x: int) -> Any:
    return torch.randn(4)


def fails_the_second_time(counter: list[int]) -> Any:
    counter.append(1)
    if len(counter) > 1:
        raise KeyError('once only')
    return torch.randn(4)


def test_what_the_load_did() -> None:
    load(changes, load(linear, 1), 2)
    assert stats().reasons[-1].endswith(
        'the loader changed an object that was passed to it: argument inner; '
        'make that object and call the loader in one function, and give that to overmind.api.load'
    )
    cache.cached_call(made_up, (1,), {}, patched=True)
    assert stats().reasons[-1].endswith('depends on chance (it moved the random state of torch)')


def test_a_second_load_that_fails_is_not_the_programs_affair() -> None:
    value = cache.cached_call(fails_the_second_time, ([],), {}, patched=True)
    assert value.shape == (4,)
    assert "under another seed failed: KeyError: 'once only'" in stats().reasons[-1]


def test_place() -> None:
    inner = object()
    assert place(inner, inner) == 'result'
    assert place({'a': (1, [inner])}, inner) == "result['a'][1][0]"
    assert place({(1, 2): inner}, inner) == 'result[...]'
    assert place(Node(x=Node(y=inner)), inner) == 'result.x.y'
    assert place([loop()], inner) == ''
    model = nn.Sequential(nn.Linear(2, 2))
    assert place({'m': model}, model[0].weight) == "result['m'][0].weight"
