"""Arenas that another entry has already are linked into the new one instead of written (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from overmind.arena import Plan
from overmind.entries import close
from overmind.errors import Hangs, StoreError
from overmind.logs import logger
from overmind.staging import Staging
from overmind.store import Store

if TYPE_CHECKING:
    from overmind.control.client import Place


Agreement = Callable[[Plan, int], int]


def link_twins(staging: Staging, plans: list[Plan], agreement: Agreement) -> set[str]:
    """Link what is there already, found by size and compared byte by byte; the names of the plans that need no copy.

    agreement(plan, fd) says how many bytes of a file are those of the plan, from its start; plan.nbytes where all are.
    What fails, unless the daemon hangs, leaves an arena to be written.
    """
    linked = set()
    try:
        alike = _own_arenas(staging.store, {p.nbytes for p in plans})
        for p in plans:
            if _link_twin(staging, p, alike.get(p.nbytes, []), agreement):
                linked.add(p.name)
    except Hangs:
        raise
    except (OSError, StoreError) as e:
        logger.debug('arenas are not shared with other entries: %s', e)
    return linked


def _link_twin(staging: Staging, plan: Plan, alike: list[tuple[str, str]], agreement: Agreement) -> bool:
    compared = 0  # in vain. Arenas that differ near their end could else cost more than a copy.
    for id, name in alike:
        if compared >= plan.nbytes:
            break
        try:
            with arena_for_reading(staging.store, 'pipelines', id, name) as (file, memory):
                agreed = staging.store.patiently_with(memory, functools.partial(agreement, plan))
                if agreed == plan.nbytes:
                    staging.link(file, plan.name)
                    return True
        except FileNotFoundError:
            continue  # evicted or replaced meanwhile
        compared += agreed
    return False


def _own_arenas(store: Store, sizes: set[int]) -> dict[int, list[tuple[str, str]]]:
    """Entry and name of the published arenas of this user that have one of these sizes, newest first."""
    pipelines = os.path.join(store.root, 'pipelines')

    def look() -> dict[int, list[tuple[str, str]]]:
        return {nbytes: list(_asked(pipelines, nbytes)) for nbytes in sizes}

    if store.is_mount:
        return store.patiently(look)
    found: dict[int, list[tuple[str, str]]] = {}
    for _, nbytes, id, name in sorted(store.patiently(lambda: list(_arenas_in(pipelines))), reverse=True):
        if nbytes in sizes:
            found.setdefault(nbytes, []).append((id, name))
    return found


def _asked(pipelines: str, nbytes: int) -> Iterator[tuple[str, str]]:
    """What the daemon knows of one size; reading the list of all entries would take longer with each of them."""
    try:
        answer = os.getxattr(pipelines, f'user.overmind.arenas.{nbytes}').decode()
    except OSError as e:
        if e.errno == errno.ENODATA:  # a daemon of before this attribute
            return
        raise
    for line in answer.splitlines():
        id, _, name = line.partition('/')
        yield id, name


@contextlib.contextmanager
def arena_for_reading(store: Store, place: Place, id: str, name: str) -> Iterator[tuple[int, int]]:
    """The file of an arena, open for reading and closed at the end, and what its bytes are to be read from."""
    path = os.path.join(store.root, place, id, 'tensors', name)
    with contextlib.ExitStack() as opened:
        file = memory = store.patiently(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), late=close)
        opened.callback(close, file)
        if store.way == 'fd':
            memory = store.memory(place, id, name, os.fstat(file).st_ino)
            opened.callback(close, memory)
        yield file, memory


def _arenas_in(pipelines: str) -> Iterator[tuple[float, int, str, str]]:
    """Of a plain directory: time, size, entry and name of each arena of this user."""
    for id in os.listdir(pipelines):
        with contextlib.suppress(OSError), os.scandir(os.path.join(pipelines, id, 'tensors')) as files:
            for f in files:
                st = f.stat()
                if st.st_uid == os.geteuid():
                    yield st.st_mtime, st.st_size, id, f.name


def agreement_with_memory(keep: Any) -> Agreement:
    """Compares with the memory of this process; keep holds what the plans' pieces point to.

    The thread that compares may be left behind in a daemon that hangs, so it has a reference of its own.
    """

    def agreement(plan: Plan, fd: int, _: Any = keep) -> int:
        import overmind_cext

        return overmind_cext.agreement(fd, plan.nbytes, plan.header, plan.pieces)

    return agreement
