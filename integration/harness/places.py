"""Where things are."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / 'integration' / 'program.py'


def daemon_binary() -> Path:
    """The daemon that ``make build`` makes, or the one that $OVERMIND_FS names."""
    return Path(os.environ.get('OVERMIND_FS') or REPOSITORY / 'bin' / 'overmind-fs')


def work_folder() -> Path:
    """Checkpoints and results, kept between runs: $OVERMIND_WORK, or .work in the repository."""
    return Path(os.environ.get('OVERMIND_WORK') or REPOSITORY / '.work').resolve()


def checkpoint_folder(size: str, dtype: str) -> Path:
    return work_folder() / 'checkpoints' / f'{size}-{dtype}'
