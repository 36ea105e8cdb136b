"""``overmind gc``, which keeps a plain directory small while programs load from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.harness.daemon import Daemon
from integration.harness.runs import environment
from integration.tests.conftest import ForkChild
from integration.tests.loaders import LARGE_BYTES
from integration.tests.stages import STAGES

pytestmark = pytest.mark.one_way('a plain directory has no daemon, and a mount is refused')

_COMMAND = 'from overmind.run.command import main; main()'
DAY = 86400

# The interpreter may lie where another user cannot look: what it needs is imported as root.
_AS_USER = """
import os, sys
import overmind.gc
uid = int(sys.argv[1])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
sys.exit(overmind.gc.main(sys.argv[3:]))
"""


def gc(*arguments: str | Path, status: int = 0) -> str:
    """What it says, on either stream."""
    line = [sys.executable, '-c', _COMMAND, 'gc', *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == status, done
    assert 'Traceback' not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / 'root'
    folder.mkdir()
    return folder


def entries(root: Path) -> list[Path]:
    return sorted((root / 'pipelines').iterdir(), key=lambda path: path.stat().st_mtime)


def fill(root: Path, fork_child: ForkChild, *names: str) -> list[Path]:
    """Entries in the order of the calls, each used a day after the one before, the last one a day ago."""
    child = fork_child(root, OVERMIND_STRICT='1')
    for name in names:
        assert child.ask(f'load {name}')['misses']
    assert child.finish() == 0
    filled = entries(root)
    for age, path in enumerate(reversed(filled), 1):
        os.utime(path, (0, time.time() - age * DAY))
    return filled


def test_least_recently_used_first(root: Path, fork_child: ForkChild) -> None:
    one, two, three = fill(root, fork_child, 'numbered 1', 'numbered 2', 'numbered 3')
    child = fork_child(root, OVERMIND_STRICT='1')
    assert child.ask('load numbered 1')['hits'] == 1
    assert child.finish() == 0
    nbytes = sum(path.stat().st_blocks * 512 for path in one.rglob('*') if path.is_file())
    assert 'would remove 1 entries' in gc(root, '--dry-run', '--max-bytes', str(2 * nbytes))
    assert len(entries(root)) == 3
    said = gc(root, '--max-bytes', f'{2 * nbytes}B')
    assert set(entries(root)) == {one, three}
    assert f'unused for   2d  {two.name}' in said
    assert 'removed 1 entries and 0 dead fills' in said
    assert os.listdir(root / 'staging') == os.listdir(root / 'locks') == []


def test_by_age(root: Path, fork_child: ForkChild) -> None:
    old, new = fill(root, fork_child, 'numbered 1', 'numbered 2')
    os.utime(old, (0, time.time() - 8 * DAY))
    assert gc(root, '--max-age', '9d').startswith('removed 0 entries')
    gc(root, '--max-age', '7d')
    assert entries(root) == [new]
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load numbered 1')
    assert answer['misses'] == 1


def test_what_entries_share_counts_once(root: Path, fork_child: ForkChild) -> None:
    one, two = fill(root, fork_child, 'numbered 1', 'numbered 01')
    assert (one / 'tensors' / 'model.safetensors').samefile(two / 'tensors' / 'model.safetensors')
    nbytes = {
        path.stat().st_ino: path.stat().st_blocks * 512 for path in root.rglob('pipelines/*/**/*') if path.is_file()
    }
    gc(root, '--max-bytes', str(sum(nbytes.values())))
    assert len(entries(root)) == 2
    gc(root, '--max-bytes', str(sum(nbytes.values()) - 1))
    assert entries(root) == [two]


def test_what_entries_shared_is_freed_with_the_last_of_them(root: Path, fork_child: ForkChild) -> None:
    """Counted as if it were still there, it would cost entries that have room."""
    *sharing, other = fill(root, fork_child, 'numbered 1', 'numbered 01', 'numbered 001', 'numbered 2')
    room = str(sum(path.stat().st_blocks * 512 for path in other.rglob('*') if path.is_file()))
    for dry_run in (['--dry-run'], []):
        said = gc(root, '--max-bytes', room, *dry_run)
        assert '3 entries and 0 dead fills' in said
        assert '; 1 entries are left' in said
        assert all(f'  {entry.name}\n' in said for entry in sharing)
    assert entries(root) == [other]
    gc(root, '--max-bytes', '0')


def test_a_cache_that_was_only_begun(root: Path, fork_child: ForkChild) -> None:
    fill(root, fork_child, 'numbered 1')
    for folder in ('pipelines', 'staging', 'locks'):
        shutil.rmtree(root / folder)
    assert '0 entries are left' in gc(root, '--max-bytes', '0')


def test_an_entry_that_cannot_be_read(root: Path, fork_child: ForkChild) -> None:
    """Root has filled the cache of a user, who hears that it is there."""
    if os.geteuid() != 0:
        pytest.skip('only root gives files away')
    theirs, ours = fill(root, fork_child, 'numbered 1', 'numbered 2')
    for path in (root, *root.rglob('*')):
        if path != theirs:
            os.chown(path, 4242, 4242)
    for folder in (root.parent, root.parent.parent, root.parent.parent.parent):
        folder.chmod(0o755)
    line = [sys.executable, '-c', _AS_USER, '4242', 'gc', str(root), '--max-bytes', '0']
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment())
    assert (done.returncode, theirs.name in done.stderr) == (1, True), done
    assert '1 more entries cannot be read' in done.stderr
    assert not ours.exists()


def test_what_a_process_has_mapped_stays(root: Path, fork_child: ForkChild) -> None:
    fill(root, fork_child, 'numbered 1')
    child = fork_child(root, OVERMIND_STRICT='1')
    assert child.ask('load numbered 1')['hits'] == 1
    said = gc(root, '--max-bytes', '0', status=1)
    assert f'in use  {entries(root)[0].name}' in said
    assert 'the rest is in use' in said
    forked = child.ask('fork')['pid']
    assert forked
    child.ask('drop')
    assert 'in use' in gc(root, '--max-bytes', '0', status=1)  # the forked process has it still
    assert child.finish() == 0
    gc(root, '--max-bytes', '0')
    assert entries(root) == []


@pytest.mark.parametrize('stage', STAGES)
def test_dead_fills_go_and_others_stay(root: Path, fork_child: ForkChild, stage: str) -> None:
    filler = fork_child(root, OVERMIND_STRICT='1')
    filler.ask(f'stop_at {stage}')
    assert filler.ask('load large') == {'stage': stage}
    left = os.listdir(root / 'staging')
    assert len(left) == (stage != 'lock held')
    gc(root, '--max-bytes', '0', '--max-age', '0s')
    assert os.listdir(root / 'staging') == left
    assert len(os.listdir(root / 'locks')) == 1
    filler.kill()
    assert f'{len(left)} dead fills' in gc(root)
    assert os.listdir(root / 'staging') == os.listdir(root / 'locks') == []
    assert sum(path.stat().st_blocks * 512 for path in root.rglob('*')) < LARGE_BYTES


def test_entry_that_was_moved_aside(root: Path, fork_child: ForkChild) -> None:
    """By a filler that was killed before it put the new one there."""
    (entry,) = fill(root, fork_child, 'numbered 1')
    entry.rename(root / 'staging' / f'.old-{entry.name}')
    assert '1 dead fills' in gc(root)
    assert os.listdir(root / 'staging') == []


def test_links_lead_nowhere(root: Path, tmp_path: Path, fork_child: ForkChild) -> None:
    (entry,) = fill(root, fork_child, 'numbered 1')
    outside = tmp_path / 'outside'
    (outside / 'folder').mkdir(parents=True)
    (outside / 'folder' / 'file').write_text('kept')
    for link in (entry / 'folder', entry / 'tensors' / 'folder', root / 'staging' / 'a', root / 'pipelines' / 'b'):
        link.symlink_to(outside / 'folder')
    (entry / 'tensors' / 'file').symlink_to(outside / 'folder' / 'file')
    gc(root, '--max-bytes', '0')
    assert not entry.exists()
    assert not os.path.lexists(root / 'staging' / 'a')
    assert (outside / 'folder' / 'file').read_text() == 'kept'
    (root / 'pipelines' / 'b').unlink()
    (root / 'pipelines').rmdir()
    (root / 'pipelines').symlink_to(outside)
    gc(root, '--max-bytes', '0', status=1)
    assert (outside / 'folder' / 'file').read_text() == 'kept'


def test_while_others_load(root: Path, fork_child: ForkChild) -> None:
    """Every load gives its object through the cache, whatever goes at the same time."""
    children = [fork_child(root, OVERMIND_STRICT='1') for _ in range(3)]
    digests = [child.ask('load assorted')['digest'] for child in children]
    assert len(set(digests)) == 1
    for round in range(3):
        for child in children:
            child.send(f'again 40 {digests[0]}')
        gc(root, '--max-age', '0s')
        gc(root, '--max-age', '0s')
        answers = [child.read() for child in children]
        assert [answer['right'] for answer in answers] == [40] * 3, round
    assert fork_child(root, OVERMIND_STRICT='1').ask('load assorted')['bypasses'] == 0


def test_what_it_refuses(tmp_path: Path, daemon: Daemon) -> None:
    (tmp_path / 'other').mkdir()
    assert 'overmind-fs evict' in gc(daemon.root, '--max-bytes', '0', status=3)
    with daemon.suspended():
        assert 'is a mount' in gc(daemon.root, '--max-bytes', '0', status=3)
    assert 'is not a cache' in gc(tmp_path / 'other', status=3)
    assert 'is not a cache' in gc(tmp_path / 'nowhere', status=3)
    assert os.listdir(tmp_path / 'other') == []
    assert 'OVERMIND_ROOT' in gc(status=2)
    assert 'is not a size' in gc(tmp_path, '--max-bytes', 'much', status=2)
    assert 'is not a time' in gc(tmp_path, '--max-age', '7', status=2)
