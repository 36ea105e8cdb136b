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
from overmind.key import inputs
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


def test_files_below_an_open_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / 'x').write_text('1')
    folder = os.open(tmp_path, os.O_RDONLY)

    def look() -> None:
        os.close(os.open('x', os.O_RDONLY, dir_fd=folder))
        os.close(os.open('made', os.O_RDWR | os.O_CREAT, dir_fd=folder))
        with pytest.raises(FileNotFoundError):
            os.open('override', os.O_RDONLY, dir_fd=folder)

    try:
        r = recorded(look)
        (named,) = (s.path for s in r.sources() if s.inode)
        assert named == str(tmp_path / 'x')
        assert r.listings() == []  # it is not relative to the working directory
        assert difference(r) is None
        (tmp_path / 'override').write_text('x')
        assert difference(r) == f'{tmp_path}/override: it was not there'
        (tmp_path / 'override').unlink()
        (tmp_path / 'x').write_text('2')
        assert difference(r) == f'{tmp_path}/x: modified'
    finally:
        os.close(folder)
    assert 'key' not in os.open.__module__


@pytest.mark.parametrize('look', [os.listdir, lambda d: list(os.scandir(d))])
def test_an_open_folder_that_was_listed(tmp_path: pathlib.Path, look: Callable[[int], Any]) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    r = recorded(lambda: look(folder))
    os.close(folder)
    assert difference(r) is None
    (tmp_path / 'a').write_text('x')
    assert difference(r) == f'{tmp_path}: files came or went'


LOOKS: list[Callable[[pathlib.Path], Any]] = [
    os.path.exists, os.path.isfile, pathlib.Path.exists, pathlib.Path.is_file, lambda p: p.exists() and os.stat(p),
]  # fmt: skip


@pytest.mark.parametrize('look', LOOKS)
def test_whether_a_file_is_there(tmp_path: pathlib.Path, look: Callable[[pathlib.Path], Any]) -> None:
    path = tmp_path / 'flag'
    r = recorded(lambda: look(path))
    assert difference(r) is None
    path.write_text('x')
    assert difference(r) == f'{path}: it was not there'
    r = recorded(lambda: look(path))
    assert difference(r) is None
    path.unlink()
    assert difference(r) == f'{path}: No such file or directory'


def test_a_file_that_is_looked_for_and_then_written_is_no_input(tmp_path: pathlib.Path) -> None:
    log = tmp_path / 'log'
    log.write_text('1')

    def look() -> None:
        assert log.exists()
        with open(log, 'a') as f:
            f.write('2')

    r = recorded(look)
    assert r.sources() == []


def test_this_package_is_no_input_wherever_it_is_installed_from() -> None:
    assert recorded(lambda: open(inputs.__file__).close()).sources() == []


def test_the_programs_own_configuration_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [s.path for s in recorded(lambda: open('/etc/passwd').close()).sources()] == ['/etc/passwd']


READS: list[Callable[[], Any]] = [
    lambda: os.environ.get('A_RATE'), lambda: os.getenv('A_RATE'), lambda: 'A_RATE' in os.environ,
    lambda: os.path.expandvars('$A_RATE/x'), lambda: os.environ.setdefault('A_RATE', '3'),
    lambda: (os.environ.copy(), os.environ.get('A_RATE')), lambda: (os.environ.get('A_RATE'), dict(os.environ)),
]  # fmt: skip


@pytest.mark.parametrize('read', READS)
def test_a_variable_that_the_program_reads(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]) -> None:
    monkeypatch.setenv('A_RATE', '1')  # so that it is put back
    del os.environ['A_RATE']
    r = recorded(read)
    os.environ.pop('A_RATE', None)
    assert difference(r) is None
    os.environ['A_RATE'] = '1'
    assert difference(r) == 'environment variable A_RATE: another value'
    r = recorded(read)
    assert difference(r) is None
    assert [item.path for item in r.listings()] == ['environment variable A_RATE']
    os.environ['A_RATE'] = '2'
    assert difference(r) == 'environment variable A_RATE: another value'
    os.environ['A_RATE'] = '1'
    assert difference(r) is None


def test_variables_that_are_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the load set itself, what libraries read, and the whole environment, as for a child process."""
    import huggingface_hub.utils

    def work() -> None:
        os.environ['A_RATE'] = '1'
        assert os.environ['A_RATE'] == '1'
        huggingface_hub.utils.get_token()
        assert dict(os.environ) == os.environ.copy() == {**os.environ}

    monkeypatch.setenv('A_RATE', '0')
    assert recorded(work).listings() == []
    assert type(os.environ).__getitem__.__module__ == 'os'


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
