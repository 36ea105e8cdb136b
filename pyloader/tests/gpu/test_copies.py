"""The two ways, what is done where they fail, and that nothing of it happens when they are off."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_layer import FakeLayer, pairs, same
from roundtrip import write

from overmind.entries import OpenEntry
from overmind.gpu import copies
from overmind.gpu.pool import Pool
from overmind.manifest import decode
from overmind.manifest.encode import encode
from overmind.settings import Pin
from overmind.storages import Mapped

WAYS: list[Pin] = ['pool', 'register']


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    messages: dict[str, str] = {}
    monkeypatch.setattr(copies, 'warn_once', messages.setdefault)
    monkeypatch.setattr(copies, '_pool', Pool(4096, 2))
    return messages


def use(monkeypatch: pytest.MonkeyPatch, make: Callable[..., FakeLayer] = FakeLayer) -> list[FakeLayer]:
    """The layers that are made from now on."""
    made: list[FakeLayer] = []

    def layer(*_: Any) -> FakeLayer:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(copies, 'Cuda', layer)
    return made


@pytest.mark.parametrize('pin', WAYS)
def test_bytes_arrive(pin: Pin, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    layers = use(monkeypatch)
    for sizes in ([10, 100_000, 7], [5000], []):
        wanted = pairs(*sizes)
        copies.copy_all(torch, pin, 'fake', wanted)
        assert same(wanted)
    assert len(layers) == 2  # not for nothing at all
    assert not layers[1].buffers  # those of the first time
    assert not said


@pytest.mark.parametrize('fail_after', [0, 2])
@pytest.mark.parametrize('pin', WAYS)
def test_a_failure_is_one_warning_and_plain_copies(
    pin: Pin, fail_after: int, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    use(monkeypatch, lambda *_: FakeLayer(fail_after=fail_after))
    for _ in range(2):
        wanted = pairs(10, 100_000, 7)
        copies.copy_all(torch, pin, 'fake', wanted)
        assert same(wanted)
    (message,) = said.values()
    assert f'OVERMIND_PIN={pin}' in message
    assert 'the device is gone' in message


@pytest.mark.parametrize('pin', WAYS)
def test_an_interrupt_leaves_nothing_under_way(pin: Pin, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    class Interrupted(FakeLayer):
        def copy(self, target: Any, source: Any) -> None:
            super().copy(target, source)
            if len(self.sizes) == 3:
                raise KeyboardInterrupt

    layers = use(monkeypatch, Interrupted)
    with pytest.raises(KeyboardInterrupt):
        copies.copy_all(torch, pin, 'fake', pairs(10, 20, 30, 40))
    assert layers[0].done == 3
    use(monkeypatch)
    wanted = pairs(10)
    copies.copy_all(torch, pin, 'fake', wanted)
    assert same(wanted)
    assert not said


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_no_device_is_one_warning_and_plain_copies(said: dict[str, str]) -> None:
    wanted = pairs(10)
    copies.copy_all(torch, 'pool', torch.device('cuda:0'), wanted)
    assert same(wanted)
    assert len(said) == 1


def test_a_second_thread_does_not_wait(monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(FakeLayer):
        def finish(self) -> None:
            inside.set()
            assert go_on.wait(10)
            super().finish()

    layers = use(monkeypatch, Slow)
    first, second = pairs(10_000), pairs(20_000)
    thread = threading.Thread(target=copies.copy_all, args=(torch, 'pool', 'fake', first))
    thread.start()
    assert inside.wait(10)
    copies.copy_all(torch, 'pool', 'fake', second)
    assert same(second)
    assert len(layers) == 1  # the buffers have one user
    go_on.set()
    thread.join()
    assert same(first)
    assert not said


@pytest.mark.parametrize('pin', WAYS)
def test_entries_with_tensors_on_a_device(pin: Pin, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> None:
    """The storages of a GPU's tensors, with memory of the host in place of the GPU's."""
    weights = {'a': torch.randn(3000), 'b': torch.randn(5), 'c': torch.randn(7, 11).half(), 'none': torch.empty(0)}
    manifest, structure, files = write(weights)
    manifest.devices = ['cuda:0']
    (layers, new) = use(monkeypatch), torch.UntypedStorage.__new__
    entry = OpenEntry(decode(encode(manifest)), structure, files, 0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(torch.UntypedStorage, '__new__', lambda cls, *args, device=None: new(cls, *args))
            mapped = Mapped(torch, entry, pin=pin)
            storages = [mapped[row] for row in range(len(manifest.storages))]
    finally:
        entry.close()
    (layer,) = layers
    wanted = sorted(bytes(w.untyped_storage()) for w in weights.values())
    assert sorted(bytes(s) for s in storages) == wanted
    assert bool(layer.buffers) == (pin == 'pool')
    assert bool(layer.ever_locked) == (pin == 'register')
    assert not layer.locked
    assert not said


_OFF = """
import sys, torch
from roundtrip import roundtrip
before = torch.nn.Module.to, torch.nn.Module.cuda
got = roundtrip(torch.nn.Linear(3, 4))
assert (torch.nn.Module.to, torch.nn.Module.cuda) == before
assert not [m for m in sys.modules if m.startswith('overmind.gpu')]
assert not torch.cuda.is_initialized()
"""


def test_off_touches_nothing() -> None:
    subprocess.run([sys.executable, '-c', f'import sys; sys.path[:0] = {sys.path!r}\n{_OFF}'], check=True, timeout=120)
