"""The local cache of the Hugging Face Hub: which commit a repository name stands for on this machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

_REPOSITORY = re.compile(r'[\w.-]+(?:/[\w.-]+)?', re.ASCII)
_COMMIT = re.compile(r'[0-9a-f]{40}', re.ASCII)
_PREFIXES = ('hf-hub:', 'hf_hub:', 'hf://')


class Repository(NamedTuple):
    """A name that the cache knows. ``commit`` is empty where the wanted revision is not there."""

    name: str
    commit: str
    snapshot: str


def repository_name(value: str) -> str | None:
    """The repository that a string may name, or None."""
    for prefix in _PREFIXES:
        if value.startswith(prefix):
            value = value[len(prefix) :].partition('@')[0]
            break
    # A revision or dtype looks like a name as well; whether the cache has it decides.
    return value if len(value) <= 96 and _REPOSITORY.fullmatch(value) and '..' not in value else None


def cache_folders(cache_dir: object) -> list[str]:
    """Where libraries look for snapshots, the way huggingface_hub computes it."""
    if isinstance(cache_dir, (str, os.PathLike)):
        return [os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))]
    constants = sys.modules.get('huggingface_hub.constants')
    loaded = getattr(constants, 'HF_HUB_CACHE', None)
    folders = [loaded if isinstance(loaded, str) else _configured(os.environ)]
    old = os.environ.get('TRANSFORMERS_CACHE')
    if old and old not in folders:
        folders.append(old)
    return folders


def _configured(env: Mapping[str, str]) -> str:
    direct = env.get('HF_HUB_CACHE') or env.get('HUGGINGFACE_HUB_CACHE')
    if direct is None:
        home = env.get('HF_HOME') or os.path.join(env.get('XDG_CACHE_HOME') or '~/.cache', 'huggingface')
        direct = os.path.join(home, 'hub')
    return os.path.expandvars(os.path.expanduser(direct))


def resolve(name: str, revision: str, folders: list[str]) -> Repository | None:
    """What the cache has under a name, or None."""
    for root in folders:
        folder = os.path.join(root, 'models--' + name.replace('/', '--'))
        if not os.path.isdir(folder):
            continue
        commit = revision if _COMMIT.fullmatch(revision) else _read(os.path.join(folder, 'refs', revision))
        return Repository(name, commit, os.path.join(folder, 'snapshots', commit) if commit else '')
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding='ascii') as f:
            return f.read(200).strip()
    except (OSError, ValueError):
        return ''
