"""The root of a container, made of what this machine has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.harness.places import REPOSITORY


@dataclass(frozen=True)
class Volume:
    """A folder that a container gets, and what becomes of later mounts in it: the word behind ``mount --make-``."""

    source: str
    target: str
    propagation: str = 'rprivate'


def furnish(new: Path, volumes: Sequence[Volume], *more: str) -> str:
    """A script that makes the root of a container in a folder and goes there: the programs, an empty /tmp and /run, and
    the volumes. ``more`` are commands to run before, in which ``$new`` is that folder. No mount that it makes is seen
    outside, unless a volume says so."""
    binds = dict.fromkeys(
        str(Path(p).resolve()) for p in ('/usr', sys.base_prefix, sys.prefix, REPOSITORY) if Path(p).exists()
    )
    lines = [f'new={new}', 'mkdir -p $new', 'mount -t tmpfs container $new']
    for path in binds:
        lines += [f'mkdir -p $new{path}', f'mount --bind {path} $new{path}']
    for link in ('bin', 'lib', 'lib64', 'sbin'):
        lines.append(f'[ ! -L /{link} ] || cp -P /{link} $new/{link}')
    lines += ['mkdir $new/proc $new/dev $new/run $new/old', 'mkdir -p $new/tmp']
    for v in volumes:
        lines += [
            f'mkdir -p $new{v.target}',
            f'mount --rbind {v.source} $new{v.target}',
            f'mount --make-{v.propagation} $new{v.target}',
        ]
    lines += ['mount --rbind /dev $new/dev', 'mount -t proc proc $new/proc', *more]
    # As a slave first, or what is shared in the old root would be unmounted everywhere.
    return '\n'.join([*lines, 'pivot_root $new $new/old', 'cd /', 'mount --make-rslave /old', 'umount -l /old'])
