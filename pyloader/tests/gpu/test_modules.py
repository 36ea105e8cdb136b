"""What of a module is moved, and that torch does all the rest. The device is the host: staged tensors are new ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import overmind.api
from overmind import restore as restoring
from overmind.gpu import copies, modules
from overmind.references import References, Registry

HOST = torch.device('cpu')


def copy(torch: Any, device: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    for target, source in pairs:
        target.copy_(source)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.tied = self.first
        self.conv = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm1d(4)
        self.small = torch.nn.Parameter(torch.randn(4).half(), requires_grad=False)
        self.register_buffer('same', self.norm.running_mean)
        self.register_buffer('window', torch.arange(100)[10:20])
        self.register_buffer('strided', torch.randn(4, 6).t()[1:, ::2])
        self.register_buffer('nothing', None)
        self.register_buffer('empty', torch.empty(0))


def addresses(model: torch.nn.Module) -> dict[str, int]:
    return {n: t.data_ptr() for n, t in [*model.named_parameters(), *model.named_buffers()] if t.numel()}


def test_stage() -> None:
    model = Model()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    before, state = addresses(model), {n: t.clone() for n, t in model.state_dict().items()}
    strides = {n: t.stride() for n, t in model.state_dict().items()}
    modules.stage(torch, model, HOST, None, copy)
    after = addresses(model)
    assert {n for n in before if before[n] == after[n]} == {'strided'}
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert {n: t.stride() for n, t in model.state_dict().items()} == strides
    # As with torch's own: the parameters are the same objects, buffers are new ones.
    now = dict(model.named_parameters(remove_duplicate=False))
    assert all(now[n] is p for n, p in parameters.items())
    assert model.tied is model.first
    assert [p.requires_grad for p in now.values()] == [not n.startswith('small') for n in now]
    assert model.window.untyped_storage().nbytes() == 80
    assert model.same.data_ptr() != model.norm.running_mean.data_ptr()


def test_what_would_be_converted_is_left_to_torch() -> None:
    model = Model()
    before = addresses(model)
    modules.stage(torch, model, HOST, torch.float16, copy)
    after = addresses(model)
    assert {n for n in before if before[n] != after[n]} == {'small', 'window', 'norm.num_batches_tracked'}


class Own(torch.nn.Linear):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self


class Odd(torch.nn.Parameter):
    pass


def test_what_is_not_plain_is_left_to_torch() -> None:
    model = torch.nn.Sequential(Own(2, 2), torch.nn.Linear(2, 2), torch.nn.LSTM(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = Odd(torch.randn(2, 2))
    model[3](torch.randn(1, 2)).sum().backward()
    before = addresses(model)
    modules.stage(torch, model, HOST, None, copy)
    after = addresses(model)
    assert {n for n in before if before[n] != after[n]} == {'1.bias'}


@pytest.mark.parametrize('switch', ['overwrite_module_params_on_conversion', 'swap_module_params_on_conversion'])
def test_other_rules_of_torch(switch: str) -> None:
    model = torch.nn.Linear(2, 2)
    before = addresses(model)
    getattr(torch.__future__, f'set_{switch}')(True)
    try:
        modules.stage(torch, model, HOST, None, copy)
    finally:
        getattr(torch.__future__, f'set_{switch}')(False)
    with torch.inference_mode():
        modules.stage(torch, model, HOST, None, copy)
    assert addresses(model) == before


# ---- in the place of torch's own


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    messages: dict[str, str] = {}
    monkeypatch.setattr(modules, 'warn_once', messages.setdefault)
    monkeypatch.setattr(copies, 'warn_once', messages.setdefault)
    monkeypatch.setattr(torch.backends.cuda, 'is_built', lambda: True)
    monkeypatch.setenv('OVERMIND_PIN', 'pool')
    own = torch.nn.Module.to, torch.nn.Module.cuda
    modules.install(torch)
    modules.install(torch)
    yield messages
    overmind.api.unpatch_all()
    assert (torch.nn.Module.to, torch.nn.Module.cuda) == own


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Device and dtype of each module that would have been moved, as if there were a GPU."""
    found: list[tuple[Any, Any]] = []
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(modules, '_move', lambda torch, pin, module, *target: found.append(target))
    return found


def test_targets(said: dict[str, str], moves: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, half = torch.nn.Linear(2, 2), torch.float16
    monkeypatch.setattr(torch.nn.Module, '_apply', lambda self, fn, recurse=True: self)
    gpu, any_gpu = torch.device('cuda', 0), torch.device('cuda')
    for call, wanted in [
        (lambda: model.to('cuda'), (any_gpu, None)),
        (lambda: model.to('cuda:0', half), (gpu, half)),
        (lambda: model.to(device='cuda', dtype=half, non_blocking=True), (any_gpu, half)),
        (lambda: model.to(torch.empty(0, device='meta')), None),
        (lambda: model.to(half), None),
        (lambda: model.to('cpu'), None),
        (lambda: model.to('cuda', memory_format=torch.channels_last), None),
        (lambda: model.cuda(), (any_gpu, None)),
        (lambda: model.cuda(0), (gpu, None)),
        (lambda: model.cuda('cuda:0'), (gpu, None)),
        (lambda: model.cuda(device=torch.device('cuda')), (any_gpu, None)),
        (lambda: model.cuda('cpu'), None),
    ]:
        moves.clear()
        assert call() is model
        assert moves == ([wanted] if wanted else [])
    monkeypatch.setenv('OVERMIND_PIN', 'off')
    moves.clear()
    model.to('cuda')
    assert not moves
    assert not said


def test_torch_says_what_is_wrong(said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: pytest.fail('nothing of this is for a GPU'))
    with pytest.raises(TypeError, match='accepts floating point'):
        model.to('cpu', torch.int32)
    with pytest.raises(TypeError):
        model.to(device='cpu', no_such='argument')
    assert model.to('cpu') is model
    assert not said


def test_a_failure_is_one_warning_and_torch_moves_it(
    said: dict[str, str], moves: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError('no room')

    model, done = torch.nn.Linear(2, 2), []
    monkeypatch.setattr(torch.nn.Module, '_apply', lambda self, fn, recurse=True: done.append(self))
    monkeypatch.setattr(modules, '_move', fail)
    model.to('cuda')
    model.cuda()
    assert done == [model, model]
    (message,) = said.values()
    assert 'OVERMIND_PIN=pool: OutOfMemoryError: no room' in message


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu(said: dict[str, str]) -> None:
    model = torch.nn.Linear(2, 2)
    original = modules._originals['to'][0]
    for call in (lambda: original(model, 'cuda'), lambda: model.to('cuda')):
        with pytest.raises((RuntimeError, AssertionError), match=r'NVIDIA|CUDA'):
            call()
    assert model.weight.device == HOST
    assert not said


def test_installed_by_a_hit(said: dict[str, str]) -> None:
    from roundtrip import write

    from overmind.entries import OpenEntry
    from overmind.manifest import decode
    from overmind.manifest.encode import encode

    overmind.api.unpatch_all()
    assert not modules._originals
    none = References(Registry(), {})
    manifest, structure, files = write(torch.nn.Linear(3, 4), none)
    entry = OpenEntry(decode(encode(manifest)), structure, files, os.geteuid())
    try:
        restoring.restore(entry, none, {}, pin='pool')
    finally:
        entry.close()
    assert modules._originals['to'][1] is torch.nn.Module.to
    assert not torch.cuda.is_initialized()
