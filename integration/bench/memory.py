"""What N processes with the same weights need together, beyond what they need without any."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from integration.bench.opponents import Opponent
from integration.bench.workloads import Workload
from integration.harness.progress import progress
from integration.harness.runs import start_waiting
from integration.program import memory

PROCESSES = (1, 2, 4)
FIGURES = ('pss', 'private_dirty', 'anonymous')
# An import alone makes so much private memory.
_EACH = 0.7e9


@dataclass(frozen=True)
class Footprint:
    """Growth of the sums over all processes, in bytes; None where the machine had too little memory to try."""

    processes: int
    pss: int | None
    private_dirty: int | None
    anonymous: int | None


def _available() -> int:
    lines = Path('/proc/meminfo').read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('MemAvailable:'))


def _total(pids: list[int]) -> dict[str, int]:
    each = [memory(pid) for pid in pids]
    return {what: sum(one[what] for one in each) for what in FIGURES}


def footprint(workload: Workload, opponent: Opponent, root: Path, size: str, count: int, nbytes: int) -> Footprint:
    """Start so many programs, let all import, load and touch; look at them from outside before and after."""
    copies = 1 if opponent.fills else count
    if _available() < count * _EACH + copies * nbytes * 1.3:
        return Footprint(count, None, None, None)
    with ExitStack() as stack, progress(f'{workload.name}: {opponent.name}, {count} at once'):
        line = (*workload.arguments(size), *opponent.options)
        programs = [stack.enter_context(start_waiting(*line, env=opponent.environment(root))) for _ in range(count)]
        pids = [program.pid for program in programs]
        for program in programs:
            program.read()
        before = _total(pids)
        for program in programs:
            program.ask()
        after = _total(pids)
    return Footprint(count, *(after[what] - before[what] for what in FIGURES))
