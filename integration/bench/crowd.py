"""Eight processes that rebuild at once: their CPU time against that of one alone, and while another pipeline fills."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from integration.bench.caches import Cache
from integration.bench.memory import start_waiting
from integration.bench.opponents import OURS
from integration.bench.workloads import Workload
from integration.harness.conversation import Conversation
from integration.harness.progress import progress

PROCESSES = 8
# Alone and at once in turn: the first eight that are there at once take memory that this machine has not had before.
ROUNDS = 3


def measure(workload: Workload, other: Workload, cache: Cache, size: str) -> dict[str, Any]:
    """``workload`` is cached already; ``other`` is not, and is evicted by whoever comes next.

    CPU seconds of a load, medians of rounds: ``alone`` (the mean of eight that wait together and load one after
    another, so that their caches are as cold as those of the others), ``together`` (the sum of eight); and of one
    round ``filling`` (the sum of eight while ``other`` fills). ``wall`` and ``wall_filling``: until the last of the
    eight is ready.
    """
    root = cache.root
    alone, together = [], []
    for number in range(1, ROUNDS + 1):
        with progress(f'crowd {number}/{ROUNDS}: {PROCESSES} processes, one at a time'):
            alone.append(_answers([start_waiting(workload, OURS, root, size) for _ in range(PROCESSES)], in_turn=True))
        with progress(f'crowd {number}/{ROUNDS}: {PROCESSES} processes at once'):
            together.append(_answers([start_waiting(workload, OURS, root, size) for _ in range(PROCESSES)]))
    with progress(f'crowd: {PROCESSES} processes while another fills'):
        filler = start_waiting(other, OURS, root, size)
        meanwhile = _answers([start_waiting(workload, OURS, root, size) for _ in range(PROCESSES)], filler)
    return {
        'processes': PROCESSES,
        'alone': statistics.median(_cpu(answers) for answers in alone) / PROCESSES,
        'together': statistics.median(_cpu(answers) for answers in together),
        'filling': _cpu(meanwhile),
        'wall': statistics.median(_wall(answers) for answers in together),
        'wall_filling': _wall(meanwhile),
    }


def _cpu(answers: list[dict[str, Any]]) -> float:
    return float(sum(answer['cpu'] for answer in answers))


def _wall(answers: list[dict[str, Any]]) -> float:
    last: float = max(answer['ready_at'] - answer['asked_at'] for answer in answers)
    return last


def _answers(
    programs: list[Conversation], filler: Conversation | None = None, in_turn: bool = False
) -> list[dict[str, Any]]:
    """Of programs that all load at the same moment, or in turn; ``filler`` just before them."""
    with ExitStack() as stack:
        for program in [*programs, *([filler] if filler else [])]:
            stack.enter_context(program)
            program.read()
        if filler:
            filler.send()
            # Into the load, which takes seconds.
            time.sleep(1)
        asked = time.clock_gettime(time.CLOCK_MONOTONIC)
        answers = []
        for program in programs:
            program.send()
            if in_turn:
                answers.append(program.read())
        answers = answers or [program.read() for program in programs]
        if filler:
            filler.read()
    return [{**answer, 'asked_at': asked} for answer in answers]
