"""The same loader on a plain directory: what becomes a cache, fillers that are killed, and entries that are not what
they should be."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.harness.daemon import Daemon, command
from integration.harness.holdings import open_files, wait_until
from integration.tests.conftest import ForkChild
from integration.tests.stages import STAGES

pytestmark = pytest.mark.one_way('all loads are on a plain directory')

Damage = Callable[[bytes], bytes]

DAMAGES: dict[str, Damage] = {
    'empty': lambda data: b'',
    'half': lambda data: data[: len(data) // 2],
    'one byte short': lambda data: data[:-1],
    'zeros': lambda data: bytes(len(data)),
    'another format': lambda data: data[:4] + b'NOPE' + data[8:],
    'ones': lambda data: data[:8] + b'\xff' * (len(data) - 8),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / 'root'
    folder.mkdir()
    return folder


@pytest.fixture
def filled(root: Path, fork_child: ForkChild) -> tuple[Path, str]:
    """The entry in a plain directory, and the digest of what it holds."""
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert answer['misses'] == 1
    (entry,) = (root / 'pipelines').iterdir()
    return entry, answer['digest']


def spoil(path: Path, damage: Damage) -> None:
    """Replace a file that is 0444 by a damaged copy."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(data))
    os.chmod(path, 0o444)


def test_second_load_hits(filled: tuple[Path, str], root: Path, fork_child: ForkChild) -> None:
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert (answer['hits'], answer['digest']) == (1, filled[1])


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', ['manifest', 'structure.pkl'])
def test_damaged_file_never_gives_another_object(
    filled: tuple[Path, str], root: Path, fork_child: ForkChild, name: str, damage: str
) -> None:
    entry, truth = filled
    spoil(entry / name, DAMAGES[damage])
    child = fork_child(root)
    answer = child.ask('load assorted')
    assert answer['digest'] == truth
    # The last byte of a FlatBuffer may be one that nobody needs.
    assert answer['hits'] == 0 or (name, damage) == ('manifest', 'one byte short')
    assert child.finish() == 0


@pytest.mark.parametrize('damage', ['empty', 'half', 'one byte short'])
def test_shortened_arena_is_found_before_it_is_mapped(
    filled: tuple[Path, str], root: Path, fork_child: ForkChild, damage: str
) -> None:
    entry, truth = filled
    (arena,) = (entry / 'tensors').iterdir()
    spoil(arena, DAMAGES[damage])
    answer = fork_child(root).ask('load assorted')
    assert (answer['digest'], answer['hits']) == (truth, 0)


@pytest.mark.parametrize('name', ['manifest', 'structure.pkl', 'tensors'])
def test_missing_part(filled: tuple[Path, str], root: Path, fork_child: ForkChild, name: str) -> None:
    entry, truth = filled
    (entry / name).rename(root / 'gone')
    answer = fork_child(root).ask('load assorted')
    assert (answer['digest'], answer['hits']) == (truth, 0)


def other_format(data: bytes) -> bytes:
    """The manifest's first field, found as FlatBuffers says."""
    (table,) = struct.unpack_from('<I', data)
    (back,) = struct.unpack_from('<i', data, table)
    (at,) = struct.unpack_from('<H', data, table - back + 4)
    return data[: table + at] + struct.pack('<I', 99) + data[table + at + 4 :]


def arena_of(entry: Path) -> Path:
    (arena,) = (entry / 'tensors').iterdir()
    return arena


def other_boot(entry: Path) -> None:
    """As if the machine had been started anew since the entry was written."""
    record = json.loads((entry / 'written.json').read_text())
    assert len(record['boot']) == 36
    spoil(entry / 'written.json', lambda _: json.dumps({**record, 'boot': 'before'}).encode())


def zero_tail(path: Path) -> None:
    spoil(path, lambda data: data[:-4096] + bytes(4096))


def not_written_to_the_end(entry: Path) -> None:
    zero_tail(arena_of(entry))
    other_boot(entry)


def not_recorded(entry: Path) -> None:
    (entry / 'written.json').unlink()


def of_another_user(entry: Path) -> None:
    for path in (entry / 'manifest', entry / 'structure.pkl'):
        os.chown(path, 4242, -1)


def pickle_of_another_user(entry: Path) -> None:
    os.chown(entry / 'structure.pkl', 4242, -1)


def link_as_arena(entry: Path) -> None:
    arena = arena_of(entry)
    arena.rename(entry.parent.parent / 'arena')
    arena.symlink_to(entry.parent.parent / 'arena')


def folder_as_arena(entry: Path) -> None:
    arena_of(entry).unlink()
    (entry / 'tensors' / 'model.safetensors').mkdir()


def folder_as_manifest(entry: Path) -> None:
    (entry / 'manifest').unlink()
    (entry / 'manifest').mkdir()


def link_as_entry(entry: Path) -> None:
    entry.rename(entry.parent.parent / 'entry')
    entry.symlink_to(entry.parent.parent / 'entry')


def file_as_entry(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text('')


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    'half a manifest': (lambda entry: spoil(entry / 'manifest', DAMAGES['half']), 'manifest'),
    'another format': (lambda entry: spoil(entry / 'manifest', other_format), 'format 99'),
    'power failure': (not_written_to_the_end, 'its checksum is another one'),
    'no checksums': (not_recorded, 'has no written.json'),
    'another user': (of_another_user, 'belongs to uid 4242'),
    'a pickle of another user': (pickle_of_another_user, 'structure.pkl belongs to uid 4242'),
    'a link as arena': (link_as_arena, 'is not a file'),
    'a folder as arena': (folder_as_arena, 'is not a file'),
    'a folder as manifest': (folder_as_manifest, 'is not a file'),
    'a link as entry': (link_as_entry, 'is not a folder'),
    'a file as entry': (file_as_entry, 'is not a folder'),
}


@pytest.mark.parametrize('what', SPOILT)
def test_spoilt_entry_is_refused_and_replaced(
    filled: tuple[Path, str], root: Path, fork_child: ForkChild, what: str
) -> None:
    entry, truth = filled
    spoilt, words = SPOILT[what]
    spoilt(entry)
    child = fork_child(root)
    answer = child.ask('load assorted')
    assert (answer['digest'], answer['hits'], answer['misses']) == (truth, 0, 1)
    assert child.stderr.count('overmind: warning') == 1, child.stderr
    assert words in child.stderr
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert (answer['hits'], answer['digest']) == (1, truth)
    assert os.listdir(root / 'staging') == []


def test_whole_entry_is_used_after_a_reboot(filled: tuple[Path, str], root: Path, fork_child: ForkChild) -> None:
    """And compared once: what breaks later, while the machine runs, is not looked for."""
    entry, truth = filled
    other_boot(entry)
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load assorted')
    assert (answer['hits'], answer['digest']) == (1, truth)
    assert json.loads((entry / 'written.json').read_text())['boot'] != 'before'
    zero_tail(arena_of(entry))
    assert fork_child(root, OVERMIND_STRICT='1').ask('load assorted')['hits'] == 1


# ---- fillers


@pytest.mark.parametrize('stage', STAGES)
@pytest.mark.parametrize('before', ['nothing', 'an outdated entry'])
def test_next_one_takes_over_from_a_killed_filler(root: Path, fork_child: ForkChild, stage: str, before: str) -> None:
    truth = fork_child(None, OVERMIND_DISABLE='1').ask('load large')['digest']
    if before != 'nothing':
        fork_child(root, OVERMIND_STRICT='1').ask('load large')
        (entry,) = (root / 'pipelines').iterdir()
        spoil(entry / 'manifest', other_format)
        zero_tail(arena_of(entry))  # else it would be linked into the new one
    filler, waiter = fork_child(root), fork_child(root)
    filler.ask(f'stop_at {stage}')
    assert filler.ask('load large') == {'stage': stage}
    waiter.send('load large')
    wait_until(lambda: any('/locks/' in name for name in open_files(waiter.pid)), 'it does not wait')
    filler.kill()
    answer = waiter.read()
    assert (answer['digest'], answer['misses'], answer['bypasses']) == (truth, 1, 0)
    assert os.listdir(root / 'staging') == []
    answer = fork_child(root, OVERMIND_STRICT='1').ask('load large')
    assert (answer['digest'], answer['hits'], answer['loads'][-1]['access']) == (truth, 1, 'directory')


# ---- the folder


def refused(root: Path, fork_child: ForkChild) -> str:
    """Two loads end without the cache, with one warning, and nothing is put into the folder; the warning."""
    before = sorted(os.listdir(root))
    child = fork_child(root)
    for _ in range(2):
        answer = child.ask('load assorted')
    assert (answer['hits'], answer['misses'], answer['bypasses']) == (0, 0, 2)
    assert child.stderr.count('overmind: warning') == 1, child.stderr
    assert sorted(os.listdir(root)) == before
    return child.stderr


def test_folder_with_something_else_in_it(root: Path, fork_child: ForkChild) -> None:
    (root / 'thesis.tex').write_text('')
    assert 'nor an empty folder' in refused(root, fork_child)


def test_folder_with_a_file_of_the_name_that_a_mount_has(root: Path, fork_child: ForkChild) -> None:
    """Anybody can put one, and folders to be filled, into an empty folder with the sticky bit."""
    root.chmod(0o1777)
    for text in ('{"passthrough": {"active": true}}', 'no JSON'):
        (root / 'status.json').write_text(text)
        assert 'nor an empty folder' in refused(root, fork_child)
    for name in ('pipelines', 'staging', 'locks'):
        (root / name).mkdir()
    assert 'nor an empty folder' in refused(root, fork_child)


def test_cache_of_another_version(filled: tuple[Path, str], root: Path, fork_child: ForkChild) -> None:
    text = (root / 'CACHEDIR.TAG').read_text()
    assert text.startswith('Signature: 8a477f597d28d172789f06886806bc55\n')
    (root / 'CACHEDIR.TAG').write_text(text.replace('overmind-format: 1', 'overmind-format: 2'))
    assert 'is a cache of format 2, and this loader has format 1' in refused(root, fork_child)


def test_cache_of_another_program(root: Path, fork_child: ForkChild) -> None:
    (root / 'CACHEDIR.TAG').write_text('Signature: 8a477f597d28d172789f06886806bc55\n')
    assert 'is that of another program' in refused(root, fork_child)


def test_folder_that_others_can_change(root: Path, fork_child: ForkChild) -> None:
    root.chmod(0o777)
    assert 'can be changed by other users (mode 0777)' in refused(root, fork_child)
    root.chmod(0o1777)  # as /tmp: what is in it is safe
    assert fork_child(root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1
    (root / 'pipelines').chmod(0o777)
    assert 'pipelines can be changed by other users' in refused(root, fork_child)


def test_folder_of_another_user(root: Path, fork_child: ForkChild) -> None:
    os.chown(root, 4242, -1)
    assert 'belongs to uid 4242' in refused(root, fork_child)
    trusting = fork_child(root, OVERMIND_STRICT='1', OVERMIND_TRUST='4242')
    assert trusting.ask('load assorted')['misses'] == 1


def test_mount_point_whose_daemon_is_gone(daemon: Daemon, fork_child: ForkChild) -> None:
    """A process that has never seen the mount does not fill the disk below it."""
    daemon.stop()
    said = refused(daemon.root, fork_child)
    assert f'overmind-fs mount {daemon.root}' in said
    assert 'bind the parent, with rslave' in said
    os.removexattr(daemon.root, 'user.overmind.mountpoint')
    assert fork_child(daemon.root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1


def test_cache_is_no_mount_point(filled: tuple[Path, str], root: Path) -> None:
    done = command('mount', str(root), check=False)
    assert (done.returncode, 'the folder is not empty' in done.stderr) == (1, True)


def test_new_file_system_is_an_empty_folder(root: Path, fork_child: ForkChild) -> None:
    (root / 'lost+found').mkdir()
    assert fork_child(root, OVERMIND_STRICT='1').ask('load assorted')['misses'] == 1


def test_two_processes_make_one_cache(root: Path, fork_child: ForkChild) -> None:
    children = [fork_child(root, OVERMIND_STRICT='1') for _ in range(4)]
    for n, child in enumerate(children):
        child.send(f'load numbered {n}')
    assert [child.read()['misses'] for child in children] == [1] * 4
    assert sorted(os.listdir(root)) == ['CACHEDIR.TAG', 'locks', 'pipelines', 'staging']
