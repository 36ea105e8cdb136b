"""What this process asked of the cache and what came of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal['hit', 'miss', 'bypass']


@dataclass(slots=True)
class Load:
    """One call. seconds: ``key``, ``open``, ``map``, ``rebuild`` of a hit; ``key``, ``load``, ``pickle``, ``copy``,
    ``commit`` and the checking ``map`` and ``rebuild`` of a miss, and ``process`` where a process of its own filled;
    ``load`` of a bypass. access is how arenas were reached: ``passthrough`` or ``fd`` (shared memory of
    the daemon, by its files or over its socket), ``directory`` (files of a plain directory, mapped) or ``read`` (a
    private copy). nbytes are the bytes of the arenas; shared is the part of them that a miss found in other entries.
    Where an entry is written while the program goes on there is ``fork``, no ``map`` and ``rebuild``, and ``copy``,
    ``commit``, access and shared come when it is there."""

    loader: str
    id: str = ''
    outcome: Outcome = 'bypass'
    reason: str = ''
    access: str = ''
    nbytes: int = 0
    shared: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Stats:
    """Counters of this process, the reasons of misses and bypasses, and every load in order."""

    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    reasons: list[str] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


_lock = threading.Lock()
_stats = Stats()


def record(load: Load) -> None:
    """Count one load."""
    with _lock:
        if load.outcome == 'hit':
            _stats.hits += 1
        elif load.outcome == 'miss':
            _stats.misses += 1
        else:
            _stats.bypasses += 1
        if load.reason:
            _stats.reasons.append(f'{load.loader}: {load.reason}')
        _stats.loads.append(load)


def amend(load: Load, reason: str) -> None:
    """A miss that was counted is not kept after all."""
    with _lock:
        load.outcome, load.reason = 'bypass', reason
        _stats.misses -= 1
        _stats.bypasses += 1
        _stats.reasons.append(f'{load.loader}: {reason}')


def snapshot() -> Stats:
    """A copy that no later load changes."""
    with _lock:
        return Stats(_stats.hits, _stats.misses, _stats.bypasses, list(_stats.reasons), list(_stats.loads))
