"""Where a user's own patch points come from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from overmind import logs
from overmind.patches import config


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(config, 'warn_once', lambda key, message: said.append(message))
    return said


def found(*chain: Path) -> list[tuple[str, str]]:
    return [(p.module, p.attribute) for p in config.user_points([[str(folder) for folder in chain]])]


needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason='no tomllib before Python 3.11')


@needs_toml
def test_pyproject(tmp_path: Path, warnings: list[str]) -> None:
    (tmp_path / 'pyproject.toml').write_text('[tool.overmind]\npatch = ["a.b::f", "a::C.load"]\n')
    assert found(tmp_path) == [('a.b', 'f'), ('a', 'C.load')]
    assert warnings == []


@needs_toml
def test_nearest_folder_with_points_counts(tmp_path: Path, warnings: list[str]) -> None:
    inner = tmp_path / 'inner'
    inner.mkdir()
    (inner / 'pyproject.toml').write_text('[project]\nname = "overmind-patch"\n')
    (tmp_path / 'overmind.toml').write_text('patch = ["a::f"]\n')
    (tmp_path / 'overmind.cfg').write_text('# comment\n\n  a::g \na::f\n')
    assert found(inner, tmp_path) == [('a', 'f'), ('a', 'g')]
    (inner / 'overmind.cfg').write_text('b::h\n')
    assert found(inner, tmp_path) == [('b', 'h')]
    assert warnings == []


@needs_toml
@pytest.mark.parametrize('entry', ['"a:f"', '"a.f"', '"::f"', '"a::"', '7', '"a b::f"', '"a::f()"'])
def test_bad_entry_is_named(tmp_path: Path, warnings: list[str], entry: str) -> None:
    (tmp_path / 'overmind.toml').write_text(f'patch = ["a::f", {entry}]\n')
    assert found(tmp_path) == [('a', 'f')]
    assert len(warnings) == 1
    assert 'overmind.toml' in warnings[0]
    assert entry.strip('"') in warnings[0]


@needs_toml
@pytest.mark.parametrize('text', ['patch = "a::f"\n', 'patch = [\n', 'patch = {a = 1}\n'])
def test_bad_file_is_named(tmp_path: Path, warnings: list[str], text: str) -> None:
    (tmp_path / 'overmind.toml').write_text(text)
    assert found(tmp_path) == []
    assert len(warnings) == 1
    assert 'overmind.toml' in warnings[0]


def test_undecodable_file_is_named(tmp_path: Path, warnings: list[str]) -> None:
    (tmp_path / 'overmind.cfg').write_bytes(b'\xff\xfe')
    assert found(tmp_path) == []
    assert 'overmind.cfg' in warnings[0]


def test_no_toml_parser(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'tomllib' if sys.version_info >= (3, 11) else 'tomli', None)
    (tmp_path / 'pyproject.toml').write_text('[tool.overmind]\npatch = ["a::f"]\n')
    (tmp_path / 'overmind.cfg').write_text('a::g\n')
    assert found(tmp_path) == [('a', 'g')]
    assert 'tomli' in warnings[0]


def test_package_of_the_caller(tmp_path: Path, run) -> None:
    package = tmp_path / 'outer' / 'inner'
    package.mkdir(parents=True)
    (tmp_path / 'outer' / '__init__.py').write_text('')
    (tmp_path / 'outer' / 'overmind.cfg').write_text('toy::load\n')
    (package / '__init__.py').write_text('from overmind.patches import monkey_patch_all\nmonkey_patch_all()\n')
    (tmp_path / 'toy.py').write_text('def load(): return 1\n')
    run(f"""
import os
os.chdir('/')
sys.path.insert(0, {str(tmp_path)!r})
import outer.inner, toy
assert toy.load()[0] == 'cached'
""")


def test_warnings_go_to_the_logger() -> None:
    assert config.warn_once is logs.warn_once
