"""What N processes with the same weights need together, beyond what they need without any, and what the node does."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from integration.bench.caches import Cache
from integration.bench.measure import line
from integration.bench.opponents import Opponent
from integration.bench.workloads import Workload
from integration.harness.conversation import Conversation, ConversationError
from integration.harness.places import checkpoint_folder
from integration.harness.progress import progress
from integration.program import memory

PROCESSES = (1, 2, 4, 8)
FIGURES = ('pss', 'anonymous', 'shared', 'page_cache', 'node')
_PATIENCE = 600.0
# An import alone makes so much private memory.
_EACH = 0.7e9


@dataclass(frozen=True)
class Footprint:
    """Bytes; None where the machine had too little memory to try.

    weights are those of one load. pss and anonymous are the growth of the sums over all processes; shared is
    the shared memory of the whole machine, page_cache what of the checkpoint's files is in memory, and node the
    sum of these two and anonymous.
    """

    processes: int
    weights: int
    pss: int | None = None
    anonymous: int | None = None
    shared: int | None = None
    page_cache: int | None = None
    node: int | None = None


def meminfo(name: str) -> int:
    lines = Path('/proc/meminfo').read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f'{name}:'))


def resident(folder: Path) -> int:
    """Bytes of the files of a folder that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    page, total = mmap.PAGESIZE, 0
    for path in folder.rglob('*'):
        if not path.is_file() or not (nbytes := path.stat().st_size):
            continue
        with path.open('rb') as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
            seen = (ctypes.c_ubyte * -(-nbytes // page))()
            start = ctypes.c_char.from_buffer(mapped)
            failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(nbytes), seen)
            del start
            if failed:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        total += sum(value & 1 for value in seen) * page
    return total


def start_waiting(workload: Workload, opponent: Opponent, root: Path | None, size: str) -> Conversation:
    """A process that has done its imports when it has answered once, and loads when it is told to."""
    words = [*line(workload, opponent, checkpoint_folder(size, workload.files)), '--wait']
    return Conversation(words, opponent.environment.variables(root), _PATIENCE)


def _total(pids: list[int]) -> dict[str, int]:
    each = [memory(pid) for pid in pids]
    return {what: sum(one[what] for one in each) for what in ('pss', 'anonymous')}


def footprint(
    workload: Workload, opponent: Opponent, cache: Cache | None, size: str, count: int, nbytes: int, idle: int
) -> Footprint:
    """Start so many programs, let all import, load and touch; look at them from outside before and after.

    ``idle`` is the shared memory of the machine when nothing is cached.
    """
    copies = 1 if opponent.cache else count
    if meminfo('MemAvailable') < count * _EACH + copies * nbytes * 1.3:
        return Footprint(count, nbytes)
    root = cache.root if cache else None
    try:
        with ExitStack() as stack, progress(f'{workload.letter}: {opponent.name}, {count} at once'):
            programs = [stack.enter_context(start_waiting(workload, opponent, root, size)) for _ in range(count)]
            pids = [program.pid for program in programs]
            for program in programs:
                program.read()
            before = _total(pids)
            for program in programs:
                program.ask()
            after = _total(pids)
            shared = meminfo('Shmem') - idle
            files = resident(checkpoint_folder(size, workload.files))
    except ConversationError:
        return Footprint(count, nbytes)
    anonymous = after['anonymous'] - before['anonymous']
    pss = after['pss'] - before['pss']
    return Footprint(count, nbytes, pss, anonymous, shared, files, anonymous + shared + files)
