"""The daemon itself with many entries and with large ones: its memory, its idle CPU time, opening and listing."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.bench.memory import meminfo
from integration.harness.daemon import Daemon, command
from integration.harness.places import REPOSITORY
from integration.harness.progress import progress
from integration.harness.runs import RunError, environment

FEW, QUICK, MANY = 10, 1_000, 10_000
LARGE = 16
_GIGABYTE, _SMALL = 10**9, 64
_IDLE_SECONDS = 5
_REST_SECONDS = 10
# The arena; manifest and structure are small and share one with those of other entries.
_FILES_EACH = 1
_SPARE_FILES = 300
_OPENS = 300


def measure(few: int, many: int, large: int) -> dict[str, Any]:
    """``rss`` in bytes, ``open``, ``ls`` and ``idle`` (CPU seconds of the daemon in five) in seconds.

    ``rss_filled`` is just after the fills, ``rss_many`` when the daemon was left alone after these and all the rest. Of
    ``many`` entries only as many are made as the open files of a process allow (``entries``), one for each.
    """
    figures: dict[str, Any] = {'few': few, 'many': many, 'large_bytes': None}
    many = min(many, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE_FILES) // _FILES_EACH)
    with tempfile.TemporaryDirectory(prefix='overmind-bench-') as folder:
        with Daemon(Path(folder, 'small')) as daemon:
            _entries(daemon, few, _SMALL)
            figures['open_few'] = _ask(daemon, 'open', _OPENS)
            with progress(f'daemon: {many:,} small entries'):
                _entries(daemon, many, _SMALL)
            figures['rss_filled'] = _rss(daemon)
            figures['entries'] = len(os.listdir(daemon.root / 'pipelines'))
            figures['open_many'] = _ask(daemon, 'open', _OPENS)
            figures['ls'] = _ls(daemon)
            with progress(f'daemon: left alone for {_REST_SECONDS} seconds'):
                time.sleep(_REST_SECONDS)
            figures['idle'] = _idle(daemon)
            figures['rss_many'] = _rss(daemon)
        if large and meminfo('MemAvailable') > (large + 4) * _GIGABYTE:
            figures.update(_large(Path(folder, 'large'), large))
    return figures


def _large(root: Path, gigabytes: int) -> dict[str, Any]:
    with Daemon(root, f'--max-bytes={gigabytes + 1}GB') as daemon, progress(f'daemon: {gigabytes} GB cached'):
        _entries(daemon, gigabytes, _GIGABYTE)
        return {'large_bytes': gigabytes * _GIGABYTE, 'rss_large': _rss(daemon)}


def _rss(daemon: Daemon) -> int:
    """Without the arenas, which are shared memory: what the process itself has, and its program."""
    fields = {}
    for line in Path(f'/proc/{daemon.pid}/status').read_text().splitlines():
        name, _, value = line.partition(':')
        if name in ('VmRSS', 'RssShmem'):
            fields[name] = int(value.split()[0]) * 1024
    return fields['VmRSS'] - fields['RssShmem']


def _cpu(daemon: Daemon) -> float:
    words = Path(f'/proc/{daemon.pid}/stat').read_text().rpartition(') ')[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK')


def _idle(daemon: Daemon) -> float:
    before = _cpu(daemon)
    with progress(f'daemon: idle for {_IDLE_SECONDS} seconds'):
        time.sleep(_IDLE_SECONDS)
    return _cpu(daemon) - before


def _ls(daemon: Daemon) -> float:
    start = time.perf_counter()
    command('ls', root=daemon.root)
    return time.perf_counter() - start


def _ask(daemon: Daemon, *words: object) -> float:
    """Of a process of its own, since it opens files of the mount."""
    line = [sys.executable, '-m', 'integration.bench.daemon', *map(str, words)]
    env = environment(daemon.root, OVERMIND_STRICT='1')
    done = subprocess.run(line, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RunError(f'{" ".join(line)}: {done.stderr[-2000:]}')
    return float(json.loads(done.stdout))


def _entries(daemon: Daemon, count: int, nbytes: int) -> None:
    _ask(daemon, 'fill', count, nbytes)


# ---- in the process that is asked


def make(number: int, nbytes: int) -> Any:
    import torch

    made = torch.zeros(nbytes, dtype=torch.uint8)
    # No two alike, or they would be stored once.
    made[:8].view(torch.int64)[0] = number
    return made


def _fill(count: int, nbytes: int) -> float:
    import overmind.api

    start = time.perf_counter()
    for number in range(count):
        overmind.api.load(make, number, nbytes)
    return time.perf_counter() - start


def _open(count: int) -> float:
    """Median of opening the manifest of one entry by its id."""
    root = Path(os.environ['OVERMIND_ROOT'], 'pipelines')
    path, took = str(root / sorted(os.listdir(root))[0] / 'manifest'), []
    for _ in range(count):
        start = time.perf_counter()
        os.close(os.open(path, os.O_RDONLY))
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main() -> None:
    what, *numbers = sys.argv[1:]
    asked: dict[str, Callable[..., float]] = {'fill': _fill, 'open': _open}
    print(json.dumps(asked[what](*map(int, numbers))))


if __name__ == '__main__':
    from integration.bench.daemon import main as imported

    # Not as __main__, whose functions the cache would know by another name in every process.
    imported()
