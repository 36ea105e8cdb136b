"""Arguments that look alike and are not: each pair differs in what a loader could see."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from overmind.key.lookup import lookup


def loader(value: Any) -> Any:
    return value


def digest(value: Any) -> str:
    return lookup(loader, (value,), {}, lambda _: None).digest


@dataclasses.dataclass
class Settings:
    rate: int = 1


@dataclasses.dataclass
class Table(dict[str, int]):
    rate: int = 1


@dataclasses.dataclass
class Slotted:
    __slots__ = ('rate',)
    rate: int


class Array(np.ndarray):  # type: ignore[type-arg]
    pass


def having(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


PAIRS: dict[str, Callable[[bool], Any]] = {
    'default factory': lambda other: collections.defaultdict(int if other else list, a=1),
    'greatest length': lambda other: collections.deque([1], maxlen=3 if other else 4),
    'attribute that is no field': lambda other: having(Settings(), more=other),
    'items of a dataclass that is a dict': lambda other: [t := Table(), t.update(a=int(other))][0],
    'slot of a dataclass': lambda other: Slotted(int(other)),
    'order of an array': lambda other: np.zeros((2, 3), order='F' if other else 'C'),
    'attribute of an array': lambda other: having(np.zeros(2).view(Array), more=other),
    'mask': lambda other: np.ma.array([1, 2], mask=[0, int(other)]),
    'attribute of a tensor': lambda other: having(torch.zeros(2), more=other),
    'gradient': lambda other: having(torch.zeros(2, requires_grad=True), grad=torch.ones(2) * other),
}


@pytest.mark.parametrize('name', PAIRS)
def test_pairs(name: str) -> None:
    make = PAIRS[name]
    assert digest(make(False)) == digest(make(False)) != digest(make(True))


def test_runtime_settings_of_an_adapter() -> None:
    peft = pytest.importorskip('peft')
    other = peft.LoraConfig(runtime_config=peft.LoraRuntimeConfig(ephemeral_gpu_offload=True))
    assert digest(peft.LoraConfig()) == digest(peft.LoraConfig()) != digest(other)


def test_the_folder_above_a_link(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``link/..`` is above the folder that the link leads to, not above the link."""
    (tmp_path / 'far' / 'below').mkdir(parents=True)
    (tmp_path / 'link').symlink_to('far/below')
    for place in (tmp_path, tmp_path / 'far'):
        (place / 'x.pt').write_text(str(place))
    monkeypatch.chdir(tmp_path)
    assert digest('link/../x.pt') == digest('far/x.pt') != digest('x.pt')
    assert digest('far/../x.pt') == digest('x.pt')
    assert digest('link/..') == digest('far')
    key = lookup(loader, ('link/../x.pt',), {}, lambda _: None)
    assert key.paths == [os.path.realpath('far/x.pt')]
