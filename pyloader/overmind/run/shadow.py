"""Whether a module of the user's own stands before one that the parent has, or where the parent found none."""

from __future__ import annotations

import os
import sys
import zipimport
from collections.abc import Iterable

_SUFFIXES = ('.py', '.pyc', '.so')
_METADATA = ('.dist-info', '.egg-info')
_SCRIPTS = frozenset(('[console_scripts]', '[gui_scripts]'))


def first_entry(program: list[str], safe_path: bool) -> str | None:
    """What Python will put at the front of ``sys.path``; None if nothing."""
    if program[0] != '-m' and (os.path.isdir(program[0]) or _is_zip(program[0])):
        return os.path.abspath(program[0])
    if safe_path:
        return None
    return os.getcwd() if program[0] == '-m' else os.path.dirname(os.path.realpath(program[0]))


def shadowed(folders: Iterable[str], loaded: frozenset[str], missing: frozenset[str]) -> str | None:
    """Why imports in these folders could go another way than those of the parent went; None if they cannot."""
    for folder in folders:
        why = _in_folder(folder, loaded, missing) if os.path.isdir(folder) else _in_zip(folder, loaded | missing)
        if why is not None:
            return why
    return None


def _in_folder(folder: str, loaded: frozenset[str], missing: frozenset[str]) -> str | None:
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, _, suffix = entry.name.partition('.')
            if suffix:
                found = (stem in loaded or stem in missing) and (suffix in ('py', 'pyc') or suffix.endswith('so'))
            elif stem in missing:
                found = entry.is_dir()  # without __init__.py too: a namespace package is one where there is no other
            else:
                found = stem in loaded and any(os.path.exists(f'{entry.path}/__init__{end}') for end in _SUFFIXES)
            if found and not _is_this_package(entry):
                return f'{entry.path} comes before what libraries import as {stem}'
    return None


def plugins(folder: str) -> str | None:
    """Why libraries could have found more at their import if this folder had been on ``sys.path``; None if not."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if name.endswith(_METADATA) and _has_plugins(os.path.join(folder, name)):
                return f'{os.path.join(folder, name)} has entry points'
    return None


def _is_this_package(entry: os.DirEntry[str]) -> bool:
    return entry.name == 'overmind' and os.path.samefile(entry.path, os.path.dirname(os.path.dirname(__file__)))


def _has_plugins(folder: str) -> bool:
    """Libraries look for such when they are imported. Scripts are none of theirs."""
    try:
        with open(os.path.join(folder, 'entry_points.txt'), encoding='utf-8') as file:
            return any(line.startswith('[') and line.strip() not in _SCRIPTS for line in file)
    except (OSError, UnicodeDecodeError):
        return False


def _is_zip(path: str) -> bool:
    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _in_zip(path: str, names: frozenset[str]) -> str | None:
    if not _is_zip(path):
        return None
    importer = zipimport.zipimporter(path)
    for name in names:
        if importer.find_spec(name) is not None:
            return f'{path} has a module {name}'
    return None


def own_folders(paths: list[str], libraries: tuple[str, ...]) -> list[str]:
    """Those of some entries of ``sys.path`` that are neither the standard library's nor an installer's."""
    missing_zip = f'python{sys.version_info[0]}{sys.version_info[1]}.zip'
    return [
        path
        for path in paths
        if not os.path.join(path, '').startswith(libraries) and os.path.basename(path) != missing_zip
    ]
