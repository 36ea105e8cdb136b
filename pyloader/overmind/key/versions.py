"""Versions of installed distributions, from the names of their folders: 100 times cheaper than importlib.metadata."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache

_FOLDER = re.compile(r'(?P<name>.+?)-(?P<version>\d[^-]*?)(?:-py[\d.]+(?:-[\w.-]+)?)?\.(?:dist|egg)-info')
_VERSION = re.compile(r'^Version:\s*(\S+)', re.MULTILINE)
_EXTRA = re.compile(r'extra\s*==')
_NAME = re.compile(r'\s*([A-Za-z0-9][A-Za-z0-9._-]*)')

# Used by a load only in that they are loaded, or ours: their versions decide nothing about a result.
_IGNORED = frozenset({
    'overmind-fs', 'overmind-cext', 'pytest', 'hypothesis', 'coverage', 'pip', 'uv', 'setuptools', 'wheel', 'pluggy',
    'iniconfig', 'mypy', 'mypy-extensions', 'ruff', 'tox', 'nox', 'black', 'isort', 'flake8', 'pylint', 'pre-commit',
    'twine', 'build', 'ipython', 'ipykernel', 'jupyter-client', 'jupyter-core', 'debugpy', 'sphinx', 'librt',
    'ast-serialize', 'sortedcontainers', 'virtualenv', 'parameterized', 'psutil',
})  # fmt: skip
# Libraries probe for these and take another path where they are installed.
_OPTIONAL = (
    'accelerate', 'apex', 'auto-gptq', 'autoawq', 'bitsandbytes', 'deepspeed', 'diffusers', 'flash-attn',
    'flash-attn-3', 'gguf', 'gptqmodel', 'hqq', 'kernels', 'liger-kernel', 'nunchaku', 'optimum', 'optimum-quanto',
    'peft', 'safetensors', 'sageattention', 'sentencepiece', 'sdnq', 'tokenizers', 'torchao', 'transformers',
    'triton', 'xformers',
)  # fmt: skip
# Extras count of libraries that deal with models; that networkx could use pandas steers no load.
_MODELS = re.compile(r'^Requires-Dist:\s*(?:torch|safetensors|huggingface[-_]hub|transformers)\b', re.M)
# Extras for working on a library rather than with it.
_WORKSHOP = re.compile(
    r'extra\s*==\s*[\'"](?:[\w-]*(?:dev|test|doc|lint|quality|typing|style|benchmark)[\w-]*|all)[\'"]'
)


def normalize(name: str) -> str:
    return re.sub(r'[-_.]+', '-', name).lower()


def installed() -> Mapping[str, str]:
    """Version of every distribution on ``sys.path``; what comes first there wins, as for imports."""
    return _scan(_stamps())[0]


def _stamps() -> tuple[tuple[str, int], ...]:
    """The folders of ``sys.path`` with their change times: an install in a running process is seen."""
    found = []
    for entry in dict.fromkeys(sys.path):
        if os.path.basename(entry) == '_vendor':  # setuptools puts its private copies there once it is imported
            continue
        with contextlib.suppress(OSError):
            found.append((entry, os.stat(entry or '.').st_mtime_ns))
    return tuple(found)


@lru_cache(maxsize=8)
def _scan(stamps: tuple[tuple[str, int], ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Versions and metadata folders by normalized name."""
    versions: dict[str, str] = {}
    places: dict[str, str] = {}
    for entry, _ in stamps:
        try:
            names = os.listdir(entry or '.')
        except OSError:
            continue
        for name in names:
            if not name.endswith(('.dist-info', '.egg-info')):
                continue
            place = os.path.join(entry, name)
            match = _FOLDER.fullmatch(name)
            # The folder of a `setup.py develop` install carries no version.
            title, version = (match['name'], match['version']) if match else (name[:-9], _declared(place))
            title = normalize(title)
            if version and title not in versions:
                versions[title] = version
                places[title] = place
    return versions, places


def _read(place: str, *names: str) -> str:
    for name in names:
        with contextlib.suppress(OSError), open(os.path.join(place, name), encoding='utf-8', errors='replace') as f:
            return f.read()
    return ''


def _declared(place: str) -> str:
    match = _VERSION.search(_read(place, 'PKG-INFO', 'METADATA'))
    return match[1] if match else ''


def used() -> list[tuple[str, str]]:
    """Distributions whose modules are loaded, with their versions, and optional ones that are absent, with ``''``."""
    versions, places = _scan(_stamps())
    owners = _owners(tuple(places.items()))
    tops = {name.partition('.')[0] for name in list(sys.modules)}
    loaded = {d for top in tops for d in owners.get(top, ())} - _IGNORED
    absent = {name for d in loaded for name in _optional(places[d]) if name not in versions}
    absent.update(name for name in _OPTIONAL if name not in versions)
    # An optional one that is installed counts even unloaded: removing it would change the path taken.
    present = {name for name in _OPTIONAL if name in versions}
    return sorted([(d, versions[d]) for d in loaded | present] + [(name, '') for name in absent - _IGNORED])


@lru_cache(maxsize=4)
def _owners(places: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Distributions by the top-level names that they install."""
    found: dict[str, list[str]] = {}
    for title, place in places:
        for top in _tops(place):
            found.setdefault(top, []).append(title)
    return found


def _tops(place: str) -> Iterable[str]:
    declared = _read(place, 'top_level.txt').split()
    if declared:
        return declared
    tops = set()
    for line in _read(place, 'RECORD').splitlines():
        path = line.lstrip('"').partition(',')[0]
        top, slash, _ = path.partition('/')
        if slash and '.' not in top:
            tops.add(top)
        elif top.endswith(('.py', '.so', '.pth')):
            # An editable install has no more than `__editable__.name-1.0.pth` or a finder module.
            stem = top.removeprefix('__editable__.').removeprefix('__editable___')
            tops.add(re.split(r'[-.]|_\d', stem)[0])
    return tops


@lru_cache(maxsize=1024)
def _optional(place: str) -> tuple[str, ...]:
    found = set()
    head = _read(place, 'METADATA', 'PKG-INFO').partition('\n\n')[0]  # the description follows
    if not _MODELS.search(head) and not os.path.basename(place).startswith('torch-'):
        return ()
    for line in head.splitlines():
        if line.startswith('Requires-Dist:') and _EXTRA.search(line) and not _WORKSHOP.search(line):
            match = _NAME.match(line, len('Requires-Dist:'))
            if match:
                found.add(normalize(match[1]))
    return tuple(sorted(found - _IGNORED))


def check(distributions: Iterable[tuple[str, str]]) -> str | None:
    """The first difference between what was recorded and what is installed, in words, or None."""
    now = installed()
    for name, version in distributions:
        found = now.get(name, '')
        if found != version:
            return f'{name}: {version or "absent"} when it was loaded, now {found or "absent"}'
    return None
