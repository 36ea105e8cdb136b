"""What the user's own code looks at beside the files that it opens: folders, files that are not there, settings."""

from __future__ import annotations

import contextvars
import glob
import os
import pathlib
import sqlite3
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from overmind.errors import Unkeyable
from overmind.key.code import fingerprint
from overmind.key.inputs import Recorder, check
from overmind.key.lookup import lookup


def recorded(work: Callable[[], Any]) -> Recorder:
    with Recorder() as r:
        work()
    assert not r.changed
    return r


def difference(r: Recorder) -> str | None:
    return check(r.sources(), r.listings())


@pytest.mark.parametrize('look', [os.listdir, lambda d: list(os.scandir(d)), lambda d: glob.glob(f'{d}/*.pt')])
def test_a_folder_that_was_listed(tmp_path: pathlib.Path, look: Callable[[str], Any]) -> None:
    (tmp_path / 'a.pt').write_text('x')
    r = recorded(lambda: look(str(tmp_path)))
    assert difference(r) is None
    (tmp_path / 'b.pt').write_text('x')
    assert 'files came or went' in (difference(r) or '')


def test_a_file_that_was_not_there(tmp_path: pathlib.Path) -> None:
    path = tmp_path / 'override'

    def look() -> None:
        with pytest.raises(FileNotFoundError):
            open(path)  # noqa: SIM115

    r = recorded(look)
    assert difference(r) is None
    path.write_text('x')
    assert 'it was not there' in (difference(r) or '')


def test_a_file_that_was_made_by_the_load_is_no_input(tmp_path: pathlib.Path) -> None:
    path = tmp_path / 'made'

    def look() -> None:
        with pytest.raises(FileNotFoundError):
            open(path)  # noqa: SIM115
        path.write_text('x')

    assert difference(recorded(look)) is None


def test_reading_in_append_mode_and_a_database(tmp_path: pathlib.Path) -> None:
    path, base = tmp_path / 'log', tmp_path / 'x.db'
    path.write_text('x')
    connection = sqlite3.connect(base)
    connection.execute('create table t (x)')
    connection.commit()
    connection.close()

    def look() -> None:
        with open(path, 'a+') as f:
            f.seek(0)
            assert f.read() == 'x'
        sqlite3.connect(base).close()

    r = recorded(look)
    assert {str(path), str(base)} <= {s.path for s in r.sources()}


def test_imports_do_not_make_the_programs_folder_an_input(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'imported_during_a_load.py').write_text('X = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    r = recorded(lambda: __import__('imported_during_a_load'))
    (tmp_path / 'output.png').write_text('x')
    assert difference(r) is None


def digest(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return lookup(fn, args, kwargs, lambda _: None).digest


def identity(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_the_order_of_a_dict_counts_and_that_of_keywords_does_not() -> None:
    assert digest(identity, {'a': 1, 'b': 2}) != digest(identity, {'b': 2, 'a': 1})
    assert digest(identity, a=1, b=2) == digest(identity, b=2, a=1)


def test_autocast_counts() -> None:
    plain = digest(identity, 1)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert digest(identity, 1) != plain
    assert digest(identity, 1) == plain


config = types.ModuleType('a_module_of_the_program')
config.scale = 2  # type: ignore[attr-defined]
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar('VARIABLE', default=1)


def scaled() -> int:
    return int(config.scale)


def in_context() -> int:
    return VARIABLE.get()


def with_attribute() -> None:
    return None


def test_settings_of_the_programs_own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        before = fingerprint(scaled).digest
    except Unkeyable:
        return  # a module without a file cannot be told to be the same: refused, which is right too
    monkeypatch.setattr(config, 'scale', 3)
    assert fingerprint(scaled).digest != before


def test_a_setting_in_a_module_with_a_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'program_settings.py').write_text('scale = 2\n')
    (tmp_path / 'program_loader.py').write_text('import program_settings\ndef make(): return program_settings.scale\n')
    monkeypatch.syspath_prepend(tmp_path)
    import program_loader
    import program_settings

    before = fingerprint(program_loader.make).digest
    program_settings.scale = 5
    assert fingerprint(program_loader.make).digest != before


def test_context_variables_and_function_attributes() -> None:
    before = fingerprint(in_context).digest
    token = VARIABLE.set(2)
    assert fingerprint(in_context).digest != before
    VARIABLE.reset(token)
    before = fingerprint(with_attribute).digest
    with_attribute.scale = 2  # type: ignore[attr-defined]
    changed = fingerprint(with_attribute).digest
    del with_attribute.scale  # type: ignore[attr-defined]
    assert changed != before
