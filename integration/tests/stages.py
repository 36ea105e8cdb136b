"""Stops a load of this process at a stage of it, by replacing a function of the loader: it says so in a line, and goes
on when it reads one, which may be a new OVERMIND_DEADLINE."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overmind.cache import _Session, _stores
from overmind.copier import Copier
from overmind.fill import Fill
from overmind.locks import Lock
from overmind.originals import Originals
from overmind.staging import Staging
from overmind.store import Store

Real = Callable[..., Any]


def _stop(stage: str) -> None:
    print(json.dumps({'stage': stage}), flush=True)
    deadline = sys.stdin.readline().strip()
    for store in _stores.values() if deadline else ():
        store.deadline = float(deadline)


def _locked(real: Real) -> Real:
    def lock(self: Store, *arguments: Any) -> Lock | None:
        held: Lock | None = real(self, *arguments)
        try:
            _stop('lock held')
        except BaseException:
            if held is not None:
                held.release()
            raise
        return held

    return lock


def _before(stage: str) -> Callable[[Real], Real]:
    def replace(real: Real) -> Real:
        def method(self: Staging, *arguments: Any) -> Any:
            _stop(stage)
            return real(self, *arguments)

        return method

    return replace


def _half_copied(real: Real) -> Real:
    def copy(self: Fill, fd: int, plan: Any, mapped: bool, *arguments: Any) -> None:
        half = b'x' * (plan.nbytes // 2)
        if mapped:
            with mmap.mmap(fd, plan.nbytes) as arena:
                arena[: len(half)] = half
                _stop('half copied')
        else:
            os.pwrite(fd, half, 0)
            _stop('half copied')
        real(self, fd, plan, mapped, *arguments)

    return copy


def _after_letting_go(real: Real) -> Real:
    def let_go(self: Originals, *arguments: Any) -> None:
        real(self, *arguments)
        _stop('let go')

    return let_go


def _before_mapping(real: Real) -> Real:
    def _restore(self: Any, *arguments: Any) -> Any:
        _stop('entry open')
        return real(self, *arguments)

    return _restore


# Of a fill, in their order; what is replaced, and by what.
STAGES: dict[str, tuple[Any, str, Callable[[Real], Real]]] = {
    'lock held': (Store, 'lock', _locked),
    'staging made': (Staging, 'arena', _before('staging made')),
    'half copied': (Fill, '_copy', _half_copied),
    'before rename': (Staging, 'commit', _before('before rename')),
}

OF_A_LARGE_FILL: dict[str, tuple[Any, str, Callable[[Real], Real]]] = {
    'let go': (Originals, 'let_go', _after_letting_go),
}

OF_A_HIT: dict[str, tuple[Any, str, Callable[[Real], Real]]] = {
    'entry open': (_Session, '_restore', _before_mapping),
}


def hold_copies(file: str) -> dict[str, Any]:
    """The command ``hold_copies FILE``: copiers of this process copy nothing as long as the file is there."""
    copy = Copier.copy

    def held(*arguments: Any, **options: Any) -> None:
        Path(f'{file}.reached').touch()
        while os.access(file, os.F_OK):
            time.sleep(0.01)
        copy(*arguments, **options)

    Copier.copy = held
    return {}


def stop_at(*words: str) -> dict[str, Any]:
    """The command ``stop_at STAGE``: every later load of this process stops there."""
    owner, name, replace = {**STAGES, **OF_A_LARGE_FILL, **OF_A_HIT}[' '.join(words)]
    setattr(owner, name, replace(getattr(owner, name)))
    return {}
