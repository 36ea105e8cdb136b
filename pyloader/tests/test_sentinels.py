"""Objects that code compares by identity are the same ones after a hit."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from roundtrip import roundtrip

from overmind.key.code import fingerprint

MISSING = object()


class _Auto:
    pass


AUTO = _Auto()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given = MISSING
        self.size = AUTO

    def says(self) -> bool:
        return self.given is MISSING and self.size is AUTO


def test_a_module_that_holds_sentinels() -> None:
    net = Net()
    assert roundtrip(net).says()
    assert fingerprint(Net).digest == fingerprint(Net).digest


def test_what_has_no_name_stays_one_object() -> None:
    a, b, c = object(), _Auto(), _Auto()
    x, again, y, z = roundtrip([a, a, b, c])
    assert x is again
    assert type(x) is object
    assert type(y) is type(z) is _Auto
    assert len({id(o) for o in (x, y, z, AUTO)}) == 4


def test_what_has_state_is_a_copy() -> None:
    AUTO.state = 1  # type: ignore[attr-defined]
    try:
        back = roundtrip([AUTO])[0]
        assert back is not AUTO
        assert back.state == 1
    finally:
        del AUTO.state  # type: ignore[attr-defined]


def local() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int

    return Local


def test_a_dataclass_by_value_has_no_default() -> None:
    kind = roundtrip([local()])[0]
    assert kind.__dataclass_fields__['x'].default is dataclasses.MISSING
