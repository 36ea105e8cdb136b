"""Patch points of the user: ``patch = ["module::attribute"]`` in a project's settings.

Read are, from the nearest folder that has any: ``overmind.toml``, the table ``[tool.overmind]`` of ``pyproject.toml``,
and ``overmind.cfg``, which is a list of entries, one a line, with ``#`` for comments. The search goes from the current
folder upwards, and from the file of the caller upwards as long as the folders are one package.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from overmind.logs import warn_once
from overmind.patches.table import Point

_ENTRY = re.compile(r'([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)::([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)')
_FILES = ('overmind.toml', 'pyproject.toml', 'overmind.cfg')


def folders(frame: FrameType | None) -> list[list[str]]:
    """The two chains of folders to search: up from the current one, and the package of the code that called us."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return [_package_of(frame)]
    chain = [here]
    while os.path.dirname(chain[-1]) != chain[-1]:
        chain.append(os.path.dirname(chain[-1]))
    return [chain, _package_of(frame)]


def _package_of(frame: FrameType | None) -> list[str]:
    while frame is not None and str(frame.f_globals.get('__name__', '')).partition('.')[0] == 'overmind':
        frame = frame.f_back
    if frame is None or not os.path.isfile(frame.f_code.co_filename):
        return []
    folder = os.path.dirname(os.path.realpath(frame.f_code.co_filename))
    chain = []
    while os.path.isfile(os.path.join(folder, '__init__.py')):
        chain.append(folder)
        folder = os.path.dirname(folder)
    return chain


def user_points(chains: Iterable[Iterable[str]]) -> list[Point]:
    """The points of each chain's nearest folder that has any, without those that are not understood."""
    points: dict[tuple[str, str], Point] = {}
    for chain in chains:
        for folder in chain:
            found = [(path, entries) for path in _present(folder) if (entries := _entries(path)) is not None]
            for path, entries in found:
                for entry in entries:
                    point = _point(path, entry)
                    if point is not None:
                        points.setdefault((point.module, point.attribute), point)
            if found:
                break
    return list(points.values())


def _present(folder: str) -> Iterator[str]:
    for name in _FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            yield path


def _point(path: str, entry: Any) -> Point | None:
    match = _ENTRY.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None:
        warn_once(f'patch {path} {entry!r}', f'{path}: {entry!r} is not of the form "module::attribute" and is ignored')
        return None
    return Point(match[1], match[2], source=path)


def _entries(path: str) -> list[Any] | None:
    """The entries of one file; None if it says nothing about patch points."""
    try:
        with open(path, encoding='utf-8') as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        warn_once(f'patch {path}', f'{path} cannot be read: {e}')
        return None
    if path.endswith('.cfg'):
        lines = [line.strip() for line in text.splitlines()]
        return [line for line in lines if line and not line.startswith('#')]
    in_project = os.path.basename(path) == 'pyproject.toml'
    if in_project and not ('overmind' in text and 'patch' in text):  # not for us; the parser takes time to import
        return None
    return _toml_entries(path, text, in_project)


def _toml_entries(path: str, text: str, in_project: bool) -> list[Any] | None:
    parser = _toml_parser()
    if parser is None:
        warn_once(
            f'patch {path}',
            f'{path} is not read: Python 3.10 has no TOML parser; install the package tomli, or use overmind.cfg',
        )
        return None
    try:
        table: Any = parser.loads(text)
    except ValueError as e:
        warn_once(f'patch {path}', f'{path} is not valid TOML: {e}')
        return None
    if in_project:
        table = table.get('tool')
        table = table.get('overmind') if isinstance(table, dict) else None
    if not isinstance(table, dict) or 'patch' not in table:
        return None
    if not isinstance(table['patch'], list):
        warn_once(f'patch {path}', f'{path}: patch must be a list of "module::attribute", not {table["patch"]!r}')
        return None
    return table['patch']


def _toml_parser() -> ModuleType | None:
    import importlib

    try:
        return importlib.import_module('tomllib' if sys.version_info >= (3, 11) else 'tomli')
    except ImportError:
        return None
