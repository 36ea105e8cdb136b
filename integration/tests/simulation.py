"""``python -m integration.tests.simulation ROOT FOLDER SECONDS SEED``: processes that load, check, evict and are killed
at random, against a model of what must be there. Prints what has happened as a line of JSON.

The model: a file holds the version of each thing that can be loaded, and only this process changes it. Whatever a load
gives is that of a version which the file held between the load's beginning and its end, in every byte, and stays so for
as long as it is held.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import overmind.api
import torch

from integration.harness.daemon import command

_WORKERS = 6
_THINGS = 6
_BYTES = 1 << 20  # of the smallest thing; the others have twice as many, three times, ...
_HELD = 3
# Why a load of these may be done without the cache.
_EXPECTED = ('no room in the cache', 'an input changed while it was loaded')
# What a run must have seen.
_WANTED = ('hit', 'miss', 'bypass', 'rmdir', 'rm -r', 'evict', 'kills', 'changes')


class WrongError(Exception):
    """What must not be."""


def content(thing: int, version: int) -> dict[str, Any]:
    numbers = torch.arange((thing + 1) * _BYTES // 4, dtype=torch.int32)
    return {'version': version, 'numbers': numbers * (2 * thing + 3) + 7919 * version, 'scalar': torch.tensor(version)}


def build(path: str, thing: int) -> dict[str, Any]:
    return content(thing, read_version(path))


def read_version(path: str) -> int:
    with open(path) as f:
        return int(f.read())


def write_version(path: Path, version: int) -> None:
    new = path.with_suffix('.new')
    new.write_text(f'{version:09}')
    new.replace(path)


@dataclass
class Held:
    thing: int
    value: dict[str, Any]

    def check(self) -> None:
        expected = content(self.thing, self.value['version'])
        for name in ('numbers', 'scalar'):
            if not torch.equal(self.value[name], expected[name]):
                raise WrongError(f'thing {self.thing}: other bytes in {name} of version {expected["version"]}')


class Worker:
    """One process; reports each load in a line, short enough to arrive whole or not at all."""

    def __init__(self, root: Path, folder: Path, seed: str, report: int) -> None:
        self._root, self._folder, self._report = root, folder, report
        self._random = random.Random(seed)
        self._held: list[Held] = []
        self._unlinked: set[str] = set()  # by `rm -r`, which may have found another entry of that name half way
        os.environ['OVERMIND_ACCESS'] = self._random.choice(['auto', 'map', 'fd', 'read'])

    def run(self) -> None:
        steps = {self._load: 12, self._check: 4, self._drop: 2, self._overwrite: 1, self._evict: 3}
        for _ in range(self._random.randint(5, 200)):
            (step,) = self._random.choices(list(steps), list(steps.values()))
            step()

    def _load(self) -> None:
        thing = self._random.randrange(_THINGS)
        path = str(self._folder / f'{thing}.version')
        before = read_version(path)
        value = overmind.api.load(build, path, thing)
        after = read_version(path)
        if not before <= value['version'] <= after:
            raise WrongError(f'thing {thing}: version {value["version"]}, not {before} to {after}')
        held = Held(thing, value)
        held.check()
        done = overmind.api.stats().loads[-1]
        if done.outcome == 'bypass' and not any(words in done.reason for words in _EXPECTED):
            raise WrongError(f'thing {thing} is not cached: {done.reason}')
        os.write(self._report, f'{done.outcome}\n'.encode())
        self._held = [*self._held, held][-_HELD:]

    def _check(self) -> None:
        if self._held:
            self._random.choice(self._held).check()

    def _drop(self) -> None:
        self._held = self._held[1:]

    def _overwrite(self) -> None:
        """Nobody else must see it."""
        if self._held:
            self._held.pop().value['numbers'].zero_()

    def _evict(self) -> None:
        entries = sorted((self._root / 'pipelines').iterdir())
        if not entries:
            return
        entry = self._random.choice(entries)
        way = self._random.choice(['rmdir', 'rm -r', 'evict'])
        if way == 'evict':
            done = command('evict', entry.name, root=self._root, check=False)
            if done.returncode not in (0, 3):
                raise WrongError(f'evict {entry.name}: status {done.returncode}: {done.stderr}')
        elif way == 'rm -r':
            shutil.rmtree(entry, ignore_errors=True)
            self._unlinked.add(entry.name)
        else:
            try:
                entry.rmdir()
            except FileNotFoundError:
                way = 'too late'
            except OSError as e:
                # Another process has filled it anew in the middle of our `rm -r`, and that one is meant to stay.
                if e.errno != errno.ENOTEMPTY or entry.name not in self._unlinked:
                    raise
                self._unlinked.remove(entry.name)
                way = 'replaced'
        os.write(self._report, f'{way}\n'.encode())


class Simulation:
    """The process that forks the workers, kills them and changes the files."""

    def __init__(self, root: Path, folder: Path, seed: str) -> None:
        self._root, self._folder, self._seed = root, folder, seed
        self._random = random.Random(seed)
        self._workers: set[int] = set()
        self._versions = [0] * _THINGS
        self._reports, self._report = os.pipe()
        self._unread = b''
        os.set_blocking(self._reports, False)
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        for thing in range(_THINGS):
            self._change(thing)
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until or not all(self.counts[what] for what in _WANTED):
                self._step()
        finally:
            for pid in self._workers:
                os.kill(pid, signal.SIGKILL)
            self._reap(os.P_ALL, 0)

    def _step(self) -> None:
        while len(self._workers) < _WORKERS:
            self._fork()
        time.sleep(self._random.uniform(0.005, 0.1))
        self._read_reports()
        self._reap(os.P_ALL, os.WNOHANG)
        if self._workers and self._random.random() < 0.4:
            os.kill(self._random.choice(sorted(self._workers)), signal.SIGKILL)
        if self._random.random() < 0.2:
            self._change(self._random.randrange(_THINGS))
        self._look_at_budget()

    def _change(self, thing: int) -> None:
        self._versions[thing] += 1
        write_version(self._folder / f'{thing}.version', self._versions[thing])
        self.counts['changes'] += 1

    def _fork(self) -> None:
        self.counts['workers'] += 1
        name = f'{self._seed}-{self.counts["workers"]}'
        pid = os.fork()
        if not pid:
            _work(Worker(self._root, self._folder, name, self._report))
        self._workers.add(pid)

    def _reap(self, which: int, flags: int) -> None:
        while self._workers:
            ended = os.waitid(which, 0, os.WEXITED | flags)
            if ended is None:
                return
            self._workers.remove(ended.si_pid)
            if ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL:
                self.counts['kills'] += 1
            elif (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
                raise WrongError(f'a worker ended with code {ended.si_code}, status {ended.si_status}')

    def _read_reports(self) -> None:
        try:
            while part := os.read(self._reports, 1 << 16):
                self._unread += part
        except BlockingIOError:
            pass
        *lines, self._unread = self._unread.split(b'\n')
        self.counts.update(line.decode() for line in lines)

    def _look_at_budget(self) -> None:
        now = json.loads((self._root / 'status.json').read_text())
        used = sum(now['bytes'][place] for place in ('cached', 'staging', 'draining'))
        if used > now['limits']['max_bytes']:
            raise WrongError(f'over the budget: {now}')


def _work(worker: Worker) -> NoReturn:
    status = 1
    try:
        worker.run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    root, folder, seconds, seed = sys.argv[1:]
    torch.set_num_threads(1)
    simulation = Simulation(Path(root), Path(folder), seed)
    simulation.run(float(seconds))
    print(json.dumps(simulation.counts))


if __name__ == '__main__':
    main()
