"""``make install`` into an environment that a user already has, and a daemon of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.harness.daemon import detach

pytestmark = pytest.mark.one_way('the loader starts the daemon itself, which then has no options')

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, os, sys
from overmind.api import load, stats
import overmind, overmind_cext, torch
load(torch.load, sys.argv[1])
s = stats()
print(json.dumps([s.hits, s.misses, overmind.__file__, overmind_cext.__file__, s.loads[-1].access]))
"""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell in which the user's environment is active, after ``make install``."""
    if shutil.which('uv') is None:
        pytest.skip('uv is not on PATH')
    user = tmp_path / 'env'
    subprocess.run(['uv', 'venv', '--quiet', '--python', sys.executable, str(user)], check=True)
    # The user's own torch and everything else: that of the environment that runs the tests, without ours.
    site = next((user / 'lib').glob('python*')) / 'site-packages'
    own = tmp_path / 'libraries'
    own.mkdir()
    for path in Path(sys.prefix, 'lib', site.parent.name, 'site-packages').iterdir():
        if 'overmind' not in path.name and not path.name.endswith('.pth'):
            (own / path.name).symlink_to(path)
    (site / 'libraries.pth').write_text(f'{own}\n')
    shell = {
        **os.environ,
        'VIRTUAL_ENV': str(user),
        'PATH': f'{user / "bin"}:{tmp_path / "prefix" / "bin"}:{os.environ["PATH"]}',
        'XDG_RUNTIME_DIR': str(tmp_path / 'run'),
        'OVERMIND_STRICT': '1',
        'OVERMIND_AUTOSTART': '1',
    }
    shell.pop('OVERMIND_ROOT', None)
    shell.pop('PYTHONPATH', None)
    (tmp_path / 'run').mkdir(mode=0o700)
    done = subprocess.run(
        ['make', '-C', str(REPOSITORY), 'install', f'PREFIX={tmp_path / "prefix"}'],
        env=shell,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        yield shell
    finally:
        subprocess.run([user / 'bin/overmind', 'run', '--stop'], env=shell, check=False)
        subprocess.run([tmp_path / 'prefix/bin/overmind-fs', 'umount', tmp_path / 'run' / 'overmind'], check=False)
        detach(tmp_path / 'run')


def test_an_installed_loader_starts_its_own_daemon_once(installed: dict[str, str], tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / 'x.pt'
    torch.save(torch.nn.Linear(8, 8).state_dict(), checkpoint)
    line = [str(tmp_path / 'env/bin/python'), '-c', SCRIPT, str(checkpoint)]
    running = [
        subprocess.Popen(line, env=installed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(4)
    ]
    results = []
    for process in running:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        results.append(json.loads(out.splitlines()[-1]))
    assert sorted(r[:2] for r in results) == [[0, 1], [1, 0], [1, 0], [1, 0]]
    assert all(str(tmp_path / 'env') in r[2] and str(tmp_path / 'env') in r[3] for r in results)
    script = tmp_path / 'app.py'
    script.write_text('import sys, overmind.api\nprint(sys.argv[1:])')
    warm = {**installed, 'XDG_STATE_HOME': str(tmp_path / 'state')}
    for words, output in ((['app.py', 'x'], "['x']\n"), (['app.py', 'y'], "['y']\n"), (['--stop'], '1 ended\n')):
        run = subprocess.run(
            [tmp_path / 'env/bin/overmind', 'run', *words], env=warm, cwd=tmp_path, capture_output=True, text=True
        )
        assert (run.stdout, run.stderr, run.returncode) == (output, '', 0)
    mounts = [m for m in Path('/proc/self/mountinfo').read_text().splitlines() if str(tmp_path) in m]
    assert len(mounts) == 1
    share = tmp_path / 'prefix' / 'share'
    assert '.TH overmind' in (share / 'man/man1/overmind-fs.1').read_text()
    assert 'complete' in (share / 'bash-completion/completions/overmind-fs').read_text()
