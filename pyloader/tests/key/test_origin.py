"""Whose code a module is, asked again and again while modules come and go."""

from __future__ import annotations

import pathlib
import sys
import sysconfig
import types

import pytest

from overmind.key import lookup
from overmind.key.origin import is_first_party


def a_module(name: str, file: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = file
    return module


def test_a_module_that_takes_the_place_of_a_librarys(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    library = f'{sysconfig.get_path("purelib")}/changing/__init__.py'
    for _ in range(2):
        monkeypatch.setitem(sys.modules, 'changing', a_module('changing', library))
        assert not is_first_party('changing')
        assert not is_first_party('changing')
        monkeypatch.setitem(sys.modules, 'changing', a_module('changing', str(tmp_path / 'changing.py')))
        assert is_first_party('changing')
        monkeypatch.delitem(sys.modules, 'changing')
        assert is_first_party('changing')


class Own:
    pass


def test_classes_that_the_program_allows_in_torch_load() -> None:
    torch = pytest.importorskip('torch')
    lookup.get_ready()
    before = lookup._allowed()
    for _ in range(2):
        with torch.serialization.safe_globals([Own]):
            assert f'{__name__}.Own' in lookup._allowed().split()
            assert lookup._allowed() != before
        assert lookup._allowed() == before
    assert lookup._allowed() == before
