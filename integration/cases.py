"""``make test-cases``: the acceptance cases of another folder, on a mount of their own.

Beside the results stands a file with the versions of the libraries that ran, for the table of ``make compatibility``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from integration.harness.daemon import Daemon
from integration.harness.places import work_folder
from integration.harness.runs import environment

LIBRARIES = (
    'torch', 'transformers', 'diffusers', 'torchvision', 'accelerate', 'peft', 'safetensors', 'tokenizers',
    'sentence-transformers', 'timm', 'open-clip-torch', 'bitsandbytes', 'torchao', 'optimum-quanto', 'gguf', 'numpy',
)  # fmt: skip


def versions() -> dict[str, str]:
    """Of Python and of the libraries that the cases load, in this environment; those that are missing are left out."""
    found = {'Python': platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def versions_file(results: Path) -> Path:
    return results.with_suffix('.versions.json')


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m integration.cases', description=__doc__, allow_abbrev=False)
    parser.add_argument('folder', help='where the cases are; further options are theirs')
    parser.add_argument(
        '--work',
        type=Path,
        default=work_folder() / 'cases',
        help='where artifacts are kept; one folder a set of versions',
    )
    parser.add_argument('-o', type=Path, dest='results', help='details (default results.json in the work folder)')
    arguments, options = parser.parse_known_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    results = (arguments.results or work / 'results.json').resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    versions_file(results).write_text(json.dumps(versions(), indent=1))
    with tempfile.TemporaryDirectory(prefix='overmind-cases-') as place:
        root = Path(place, 'mnt')
        with Daemon(root, log=work / 'daemon.log'):
            line = [sys.executable, 'run.py', '--work', str(work), '-o', str(results), *options]
            return subprocess.run(
                line, cwd=arguments.folder, env={**environment(root), 'PYTHONDONTWRITEBYTECODE': '1'}
            ).returncode


if __name__ == '__main__':
    sys.exit(main())
