"""Keys that cannot be made, results that cannot be kept, memory and processes that are not to be had."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from failing import Falls, assert_clean, assert_made, make
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from overmind import restore
from overmind.api import load, stats
from overmind.key import code


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def reach(path: str) -> Any:
    return make(path)


@contextlib.contextmanager
def little_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as m:
        m.setattr(code, '_MAX_NODES', 1)
        yield


SURROUNDINGS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    'a torch function mode is active: Functions': lambda m: Functions(),
    'a torch dispatch mode is active': lambda m: Dispatch(),
    'it reaches too much code': little_code,
}


@pytest.mark.parametrize('words', SURROUNDINGS)
def test_no_key(
    root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    with SURROUNDINGS[words](monkeypatch):
        assert_made(falls_back(words, reach, checkpoint))
    assert not (root / 'pipelines').exists() or not list((root / 'pipelines').iterdir())


def test_a_configuration_that_cannot_be_read(root: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    transformers = pytest.importorskip('transformers')

    class Odd(transformers.BertConfig):  # type: ignore[misc, name-defined]
        def to_dict(self) -> Any:
            raise RuntimeError('not now')

    assert_made(falls_back('failed: not now', made_with, checkpoint, Odd()))


def made_with(path: str, config: Any) -> Any:
    return make(path)


def test_a_call_that_does_not_fit(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets the exception that Python has for it."""
    monkeypatch.delenv('OVERMIND_STRICT')
    with pytest.raises(TypeError, match='unexpected keyword argument'):
        load(make, checkpoint, scale=1)  # type: ignore[call-arg]


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compiled(path: str) -> Any:
    return [torch.jit.script(plus)]


def in_shared_memory(path: str) -> Any:
    return [torch.ones(2).share_memory_()]


def with_traced(path: str) -> Any:
    return [torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))]


RESULTS: dict[str, Callable[[str], Any]] = {
    'a compiled TorchScript function': compiled,
    'a storage in shared memory': in_shared_memory,
    'TopLevelTracedModule inside another object would come back as another class': with_traced,
}


@pytest.mark.parametrize('words', RESULTS)
def test_results(root: pathlib.Path, checkpoint: str, falls_back: Falls, words: str) -> None:
    assert len(falls_back(words, RESULTS[words], checkpoint)) == 1
    assert_clean(root, 0)


@pytest.mark.parametrize(
    ('error', 'words'), [(MemoryError('none'), 'no memory to map'), (OSError(12, 'full'), 'cannot be mapped')]
)
def test_a_hit_without_memory(
    root: pathlib.Path,
    checkpoint: str,
    falls_back: Falls,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    words: str,
) -> None:
    load(make, checkpoint)

    def fails(*_: Any) -> None:
        raise error

    with monkeypatch.context() as m:
        m.setattr(restore, 'restore', fails)
        assert_made(falls_back(words, make, checkpoint))
    assert_made(load(make, checkpoint))
    assert stats().loads[-1].outcome == 'hit'


def test_a_manifest_that_is_too_large(entry: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    os.chmod(entry / 'manifest', 0o600)
    os.truncate(entry / 'manifest', 1 << 40)
    assert_made(falls_back('manifest has more than 1 GiB', make, checkpoint, outcome='miss'))


def test_no_process_for_the_fill(
    root: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OVERMIND_FILL', 'subprocess')
    monkeypatch.setattr('sys.executable', '/nowhere/python')
    assert_made(falls_back('/nowhere/python cannot be started', make, checkpoint))
