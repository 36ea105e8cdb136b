"""What only shows after many rounds: ten seconds of it, or $OVERMIND_SOAK_SECONDS (``make test-soak``)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from integration.harness.daemon import Daemon
from integration.harness.holdings import Holdings, open_files, status, watched
from integration.harness.runs import environment
from integration.tests.conftest import ForkChild

SECONDS = float(os.environ.get('OVERMIND_SOAK_SECONDS', '10'))
CYCLES = 500 if SECONDS >= 60 else 100
MIB = 1 << 20


def test_simulation(tmp_path: Path) -> None:
    """With a budget that is too small for all, let alone for what a dying process still holds."""
    seed = os.environ.get('OVERMIND_SOAK_SEED') or str(random.randrange(10**9))
    print(f'OVERMIND_SOAK_SEED={seed}')
    with Daemon(tmp_path / 'mnt', '--max-bytes', '16MiB') as daemon, watched(daemon):
        line = [
            sys.executable,
            '-m',
            'integration.tests.simulation',
            str(daemon.root),
            str(tmp_path),
            str(SECONDS),
            seed,
        ]
        env = environment(daemon.root, OVERMIND_DEADLINE='60')
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=SECONDS + 300)
        assert done.returncode == 0, f'OVERMIND_SOAK_SEED={seed}: {done.stderr[-4000:]}'
        counts = Counter(json.loads(done.stdout))
        print(dict(counts))
        assert status(daemon.root)['fills']['committed'] >= counts['miss']
        assert 'panic' not in daemon.log_text()
        assert 'level=ERROR' not in daemon.log_text()


def test_cycles_of_load_and_evict(daemon: Daemon, holdings: Holdings, fork_child: ForkChild) -> None:
    child = fork_child(daemon.root, OVERMIND_STRICT='1')

    def sizes() -> dict[str, int]:
        text = Path(f'/proc/{daemon.pid}/status').read_text().splitlines()
        words = {name: value.split()[0] for name, _, value in (line.partition(':') for line in text) if value.split()}
        return {'memory': int(words['RssAnon']) << 10, 'threads': int(words['Threads'])}

    child.ask(f'cycles {daemon.root} 20')
    before, files = sizes(), len(open_files(child.pid))
    child.ask(f'cycles {daemon.root} {CYCLES}')
    after = sizes()
    assert child.ask('mappings') == {'live': 0}
    assert len(open_files(child.pid)) == files
    assert status(daemon.root)['fills']['committed'] == CYCLES + 20
    assert holdings.memory.nbytes() < MIB
    # Room for what the Go runtime does when it likes.
    assert after['memory'] - before['memory'] < 8 * MIB, (before, after)
    assert after['threads'] - before['threads'] < 20, (before, after)
    print(before, after)
