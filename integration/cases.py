"""``make test-cases``: the acceptance cases of another folder, on a mount of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from integration.harness.daemon import Daemon
from integration.harness.places import work_folder
from integration.harness.runs import environment


def main() -> int:
    folder, *options = sys.argv[1:]
    work = work_folder() / 'cases'
    work.mkdir(parents=True, exist_ok=True)
    results = ['-o', str(work / 'results.json')]
    with tempfile.TemporaryDirectory(prefix='overmind-cases-') as place:
        root = Path(place, 'mnt')
        with Daemon(root, log=work / 'daemon.log'):
            line = [sys.executable, 'run.py', '--work', str(work), *results, *options]
            return subprocess.run(
                line, cwd=folder, env={**environment(root), 'PYTHONDONTWRITEBYTECODE': '1'}
            ).returncode


if __name__ == '__main__':
    sys.exit(main())
