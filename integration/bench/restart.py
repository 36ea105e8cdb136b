"""From the start of a process until the pipeline is loaded, in each way in which a program can be restarted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from integration.bench.measure import Summary
from integration.bench.opponents import OURS, PLAIN, Opponent
from integration.bench.workloads import Workload
from integration.harness.places import REPOSITORY, checkpoint_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError
from integration.harness.table import seconds, table

_PROGRAM = str(REPOSITORY / 'integration' / 'ready.py')
_PYTHON = [sys.executable]
_WARM = [sys.executable, '-m', 'overmind.run']
_COMMAND = [os.path.join(os.path.dirname(sys.executable), 'overmind'), 'run']
_SETTLE_SECONDS = 300.0


@dataclass
class Restart:
    """One way, and its seconds in several processes."""

    workload: str
    way: str
    runs: list[float] = field(default_factory=list)

    @property
    def summary(self) -> Summary:
        return Summary.of(self.runs)


@dataclass(frozen=True)
class Way:
    name: str
    command: Sequence[str]
    opponent: Opponent


COLD, CACHED = Way('python, plain loading', _PYTHON, PLAIN), Way('python, overmind-fs', _PYTHON, OURS)
WARM = Way('overmind run, overmind-fs', _WARM, OURS)
_RESIDENT = 'a process that stays, overmind-fs'


def measure(workload: Workload, root: Path, size: str, repeat: int) -> list[Restart]:
    """The ways in turn, so that whatever else the machine does meets all of them. The cache is filled."""
    arguments = [_PROGRAM, str(checkpoint_folder(size, workload.files)), '--dtype', workload.dtype]
    with tempfile.TemporaryDirectory(prefix='overmind-restart-') as folder:
        own = {'XDG_RUNTIME_DIR': folder, 'XDG_STATE_HOME': folder}

        def ready(way: Way) -> float:
            return _until_ready([*way.command, *arguments, *_options(way)], {**_variables(way, root), **own})

        restarts = [Restart(workload.letter, way.name) for way in (COLD, CACHED, WARM)]
        resident = Restart(workload.letter, _RESIDENT)
        try:
            with progress(f'{workload.letter}: the warm parent learns'):
                ready(WARM)
                _settle({**_variables(WARM, root), **own})
                ready(WARM)
            for number in range(repeat):
                for restart, way in zip(restarts, (COLD, CACHED, WARM), strict=True):
                    with progress(f'{workload.letter}: restart by {way.name}, {number + 1} of {repeat}'):
                        restart.runs.append(ready(way))
            with _resident([*CACHED.command, *arguments, '--cache', '--again'], _variables(CACHED, root)) as again:
                resident.runs += [again() for _ in range(repeat)]
        finally:
            subprocess.run([*_WARM, '--stop'], env={**os.environ, **own}, stdout=subprocess.DEVNULL, check=False)
    return [*restarts, resident]


def _options(way: Way) -> list[str]:
    return ['--cache'] if way.opponent.patches else []


def _variables(way: Way, root: Path) -> dict[str, str]:
    return way.opponent.environment.variables(root if way.opponent.cache else None)


def _until_ready(line: Sequence[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word = process.stdout.readline()
        took = time.perf_counter() - start
        error = process.communicate()[1]
    if word != 'ready\n' or process.returncode or 'as plain python' in error:
        raise RunError(f'{" ".join(line)}: status {process.returncode}\n{error[-4000:]}')
    return took


def _settle(env: dict[str, str]) -> None:
    """Until what was learnt is imported."""
    until = time.monotonic() + _SETTLE_SECONDS
    while True:
        listed = subprocess.run([*_WARM, '--list'], env=env, capture_output=True, text=True, check=True).stdout
        modules = [line.split()[3] for line in listed.splitlines()[1:]]
        if any(word.isdecimal() and int(word) > 0 for word in modules):
            return
        if time.monotonic() > until:
            raise RunError(f'no warm parent has imported anything:\n{listed}')
        time.sleep(0.2)


@contextmanager
def _resident(line: Sequence[str], env: dict[str, str]) -> Iterator[Again]:
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        again = Again(process)
        again.wait()
        yield again
        process.communicate()


class Again:
    """Seconds of one more load in a process that is there already."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != 'ready\n':
            raise RunError('the resident process ended')

    def __call__(self) -> float:
        assert self._process.stdin is not None
        start = time.perf_counter()
        self._process.stdin.write('\n')
        self._process.stdin.flush()
        self.wait()
        return time.perf_counter() - start


def ratios(restarts: Sequence[Restart]) -> dict[tuple[str, str], float]:
    """How many times faster overmind run is, by workload and the other way: medians."""
    medians = {(one.workload, one.way): one.summary.median for one in restarts}
    return {
        (workload, way): median / medians[workload, WARM.name]
        for (workload, way), median in medians.items()
        if way in (COLD.name, CACHED.name)
    }


def as_table(restarts: Sequence[Restart]) -> str:
    faster = ratios(restarts)
    rows = []
    for one in restarts:
        times, of = faster.get((one.workload, one.way)), one.summary
        spread = f'{seconds(of.median)} ({seconds(of.least)} - {seconds(of.most)})'
        rows.append([one.workload, one.way, spread, f'{times:.1f}' if times else '-'])
    return table(['restart to ready', '', 'median (least - most)', 'overmind run is faster by'], rows)


def own_start(times: int = 21) -> str:
    """What the command itself takes, beside Python's start: medians of runs in turn, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix='overmind-restart-') as folder:
        env = {**os.environ, 'XDG_RUNTIME_DIR': folder, 'XDG_STATE_HOME': folder}
        program = Path(folder) / 'empty.py'
        program.write_text('')
        lines = {
            'python -c pass': [*_PYTHON, '-c', 'pass'],
            'overmind run --list': [*_COMMAND, '--list'],
            'overmind run, an empty program': [*_COMMAND, str(program)],
        }
        taken: dict[str, list[float]] = {name: [] for name in lines}
        try:
            for _ in range(times + 1):  # the first fills the page cache and starts the warm parent
                for name, line in lines.items():
                    start = time.perf_counter()
                    subprocess.run(line, env=env, stdout=subprocess.DEVNULL, check=True)
                    taken[name].append(time.perf_counter() - start)
        finally:
            subprocess.run([*_WARM, '--stop'], env=env, stdout=subprocess.DEVNULL, check=False)
    rows = [[name, f'{1000 * median(runs[1:]):.0f}', f'{1000 * min(runs[1:]):.0f}'] for name, runs in taken.items()]
    return table(['start of the command', 'median, ms', 'least'], rows)
