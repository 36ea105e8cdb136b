"""Classes and functions of a structure are found as pickle finds them, and storages that are asked for late."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from roundtrip import roundtrip
from torch import nn

from overmind.structure.unpickle import loads


def reference(module: str, name: str) -> bytes:
    """A pickle of what is of that name in a module."""
    strings = [pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode() for text in (module, name)]
    return b''.join([pickle.PROTO, b'\x05', *strings, pickle.STACK_GLOBAL, pickle.STOP])


def find(module: str, name: str) -> Any:
    return loads(reference(module, name), lambda _: None, {})


class Outer:
    class Inner:
        pass

    nothing = None


class Permissive(types.ModuleType):
    asked: list[str]

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return f'made up {name}'


@pytest.fixture
def permissive() -> Iterator[Permissive]:
    module = sys.modules['permissive'] = Permissive('permissive')
    module.Outer = Outer  # type: ignore[attr-defined]
    module.nothing = None  # type: ignore[attr-defined]
    module.asked = []
    yield module
    del sys.modules['permissive']


@pytest.mark.parametrize('name', ['Outer', 'Outer.Inner', 'nothing', 'Outer.nothing', '__name__'])
def test_what_is_in_a_module(permissive: Permissive, name: str) -> None:
    wanted = pickle.loads(reference('permissive', name))
    assert find('permissive', name) is wanted
    assert permissive.asked == []


def test_what_a_module_makes_when_it_is_asked(permissive: Permissive) -> None:
    assert find('permissive', 'late') == 'made up late'
    assert permissive.asked == ['late']


@pytest.mark.parametrize(('module', 'name'), [('overmind_not_there', '__dir__'), ('overmind_not_there', 'x')])
def test_a_module_that_is_not_there(module: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        find(module, name)


def test_an_attribute_of_a_module_that_nobody_has_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'overmind_new_module.py').write_text('x = 3\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert find('overmind_new_module', 'x') == 3
    assert find('overmind_new_module', '__class__') is types.ModuleType
    del sys.modules['overmind_new_module']


def test_a_module_that_another_thread_is_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has so far is not what it will have."""
    gate = types.ModuleType('overmind_gate')
    gate.reached, gate.opened = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, 'overmind_gate', gate)
    (tmp_path / 'overmind_slow_module.py').write_text(
        'import overmind_gate\nvalue = "first"\novermind_gate.reached.set()\novermind_gate.opened.wait(60)\n'
        'value = "final"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    importing = threading.Thread(target=__import__, args=('overmind_slow_module',))
    importing.start()
    assert gate.reached.wait(60)
    found: list[str] = []
    finding = threading.Thread(target=lambda: found.append(find('overmind_slow_module', 'value')))
    finding.start()
    finding.join(0.3)
    gate.opened.set()
    importing.join()
    finding.join()
    del sys.modules['overmind_slow_module']
    assert found == ['final']


class Moving(nn.Module):
    """Gives its weight other memory when it is unpickled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.half()


def test_a_storage_whose_tensor_has_moved_meanwhile() -> None:
    module = Moving()
    view = module.weight.data[1:3]
    storage = module.weight.untyped_storage()
    back, part, memory = roundtrip([module, view, storage])
    assert back.weight.dtype == torch.float16
    assert part.tolist() == [1.0, 2.0]
    assert memory.nbytes() == 16
    assert torch.empty(0).set_(memory).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_storage_and_its_tensor_stay_together() -> None:
    weight = torch.arange(4.0)
    back, memory = roundtrip([weight, weight.untyped_storage()])
    assert memory.data_ptr() == back.data_ptr()
    assert memory._cdata == back.untyped_storage()._cdata


def test_tensors_by_a_public_function_where_torch_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = torch._C._from_dlpack, []

    def public(capsule: Any) -> torch.Tensor:
        made.append(make(capsule))
        return made[-1]

    monkeypatch.delattr(torch._C, '_from_dlpack')
    monkeypatch.setattr('torch.utils.dlpack.from_dlpack', public)
    weight = nn.Parameter(torch.arange(4.0))
    back = roundtrip(weight)
    assert back is made[0]
    assert type(back) is nn.Parameter
    assert torch.equal(back, weight)
