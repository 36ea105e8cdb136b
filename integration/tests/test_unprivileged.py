"""Daemons without privileges: each works, or says in one line what is missing."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.harness.daemon import DEFAULT_WAY
from integration.harness.holdings import wait_until
from integration.harness.places import daemon_binary, work_folder
from integration.tests.conftest import ForkChild
from integration.tests.spaces import Space

UID = 65534
NAMELESS = 54321
AS_USER = ['setpriv', f'--reuid={UID}', f'--regid={UID}', '--clear-groups']
# None of them has passthrough, as the log says.
WITHOUT_SOCKET = ['--fd-passing=off'] if DEFAULT_WAY == 'read' else []
REFUSED = pytest.mark.one_way('nothing is mounted')
NO_PASSTHROUGH = 'the daemon lacks CAP_SYS_ADMIN in the initial user namespace'


@dataclass
class Place:
    """Where an ordinary user may run the daemon: folders that are open to all, and a /dev/fuse in a mount namespace."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / 'mnt'

    @property
    def binary(self) -> str:
        return str(self.folder / 'bin' / 'overmind-fs')

    def environment(self, helper: bool = True) -> dict[str, str]:
        path = f'{self.folder / "bin"}:' if helper else ''
        return {
            'PATH': f'{path}/usr/sbin:/usr/bin:/sbin:/bin',
            'HOME': str(self.folder),
            'TMPDIR': str(self.folder / 'run'),
        }

    def device(self, mode: str) -> str:
        """A script that puts a device of that mode over /dev/fuse."""
        box = self.folder / 'device'
        return (
            f'mkdir -p {box}; mount -t tmpfs device {box}; mknod -m {mode} {box}/fuse c 10 229; '
            f'mount --bind {box}/fuse /dev/fuse'
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    if os.geteuid() != 0:
        pytest.skip('only root can become another user and give away namespaces')
    if not os.path.exists('/dev/fuse'):
        pytest.skip('no /dev/fuse')
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    made = Place(tmp_path)
    (tmp_path / 'bin').mkdir()
    for folder in (made.root, tmp_path / 'run'):
        folder.mkdir()
        os.chown(folder, UID, UID)
    shutil.copy(daemon_binary(), made.binary)
    os.chmod(made.binary, 0o755)
    return made


@pytest.fixture
def helper(place: Place) -> Path:
    """fusermount3, beside the daemon."""
    found = work_folder() / 'fuse3' / 'bin' / 'fusermount3'
    if not found.exists():
        pytest.skip('no fusermount3: make fusermount, or apt-get install fuse3')
    if os.statvfs(place.folder).f_flag & os.ST_NOSUID:
        pytest.skip(f'{place.folder} is mounted nosuid')
    path = Path(shutil.copy(found, place.folder / 'bin'))
    path.chmod(0o4755)
    return path


@pytest.fixture
def open_device(place: Place) -> Iterator[Space]:
    try:
        with Space(['--mount', '--propagation=private'], place.device('666')) as space:
            yield space
    except OSError as error:
        pytest.skip(f'no mount namespace with a device: {error}')


class Served:
    """A daemon in namespaces, in the foreground, until its mount answers there."""

    def __init__(self, place: Place, line: list[str], *options: str, helper: bool = True) -> None:
        self.log = place.folder / 'log'
        with self.log.open('wb') as log:
            self._process = subprocess.Popen(
                [*line, place.binary, 'mount', '--pressure=off', *WITHOUT_SOCKET, *options, str(place.root)],
                env=place.environment(helper), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd='/',
            )  # fmt: skip

    def __enter__(self) -> Served:
        def is_up() -> bool:
            assert self._process.poll() is None, self.log.read_text()
            return 'msg=mounted' in self.log.read_text()

        wait_until(is_up, self.log.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0, self.log.read_text()


def message(place: Place, line: list[str], *options: str, helper: bool = True) -> str:
    """What a mount that is refused says: one line."""
    done = subprocess.run(
        [*line, place.binary, 'mount', *options, str(place.root)],
        env=place.environment(helper), capture_output=True, text=True, timeout=60, cwd='/',
    )  # fmt: skip
    assert done.returncode == 1, (done.returncode, done.stderr)
    (said,) = done.stderr.splitlines()
    return said


def diagnosis(place: Place, line: list[str], helper: bool = True) -> str:
    """What doctor finds about mounting."""
    done = subprocess.run(
        [*line, place.binary, 'doctor', '--json', '--root', str(place.root)],
        env=place.environment(helper), capture_output=True, text=True, timeout=60, cwd='/',
    )  # fmt: skip
    found = [f for f in json.loads(done.stdout)['findings'] if f['check'] in ('mounting', 'passthrough')]
    return '\n'.join(f'{f["what"]}; {f["fix"]}' for f in found)


def fill_and_hit(fork_child: ForkChild, place: Place, *commands: str) -> None:
    answers = []
    for _ in range(2):
        child = fork_child(place.root, OVERMIND_STRICT='1')
        for command in commands:
            child.ask(command)
        answers.append(child.ask('load assorted'))
        assert child.stderr == ''
        child.finish()
    first, second = answers
    assert (first['misses'], second['hits']) == (1, 1)
    assert first['digest'] == second['digest']
    assert [a['loads'][-1]['access'] for a in answers] == ['read' if WITHOUT_SOCKET else 'fd'] * 2


def test_ordinary_user(place: Place, helper: Path, open_device: Space, fork_child: ForkChild) -> None:
    """No capability at all: fusermount3 mounts, and arenas come over the socket."""
    line = open_device.line(uid=UID)
    with Served(place, line) as served:
        assert NO_PASSTHROUGH in served.log.read_text()
        assert NO_PASSTHROUGH in diagnosis(place, line)
        fill_and_hit(fork_child, place, f'enter {open_device.pid} mnt', f'become {UID}')


def test_user_namespace(place: Place, open_device: Space, fork_child: ForkChild) -> None:
    """Its root mounts without help from anybody, and without passthrough."""
    prefix = open_device.line(uid=UID)
    try:
        with Space(['--user', '--map-root-user', '--mount'], 'true', prefix) as space:
            line = space.line(kinds='user,mnt')
            with Served(place, line, helper=False) as served:
                assert NO_PASSTHROUGH in served.log.read_text()
                fill_and_hit(fork_child, place, f'enter {space.pid} user,mnt', 'become 0')
    except OSError as error:
        pytest.skip(f'no user namespace for an ordinary user: {error}')


@REFUSED
def test_user_namespace_without_a_mount_namespace(place: Place) -> None:
    os.chown(place.root, 0, 0)
    line = ['unshare', '--user', '--map-root-user']
    if subprocess.run([*line, 'true'], capture_output=True).returncode:
        pytest.skip('no user namespaces')
    assert message(place, line).endswith('unshare --user --map-root-user --mount')


@REFUSED
def test_dropped_capability(place: Place) -> None:
    line = ['setpriv', '--bounding-set=-sys_admin', '--inh-caps=-sys_admin']
    said = 'root lacks CAP_SYS_ADMIN here; in a container: --cap-add SYS_ADMIN'
    assert said in message(place, line)
    assert said in diagnosis(place, line)


def test_few_files_and_no_locked_memory(place: Place, helper: Path, open_device: Space, fork_child: ForkChild) -> None:
    """Entries make room for one another; nothing is locked into memory."""
    limits = ['prlimit', '--nofile=64:64', '--memlock=0:0']
    with Served(place, open_device.line(*limits, uid=UID)):
        child = fork_child(place.root, OVERMIND_STRICT='1')
        child.ask(f'enter {open_device.pid} mnt')
        child.ask(f'become {UID}')
        for number in range(12):
            assert child.ask(f'load numbered {number}')['loads'][-1]['outcome'] == 'miss'
        assert child.ask('load numbered 11')['hits'] == 1
        child.finish()


@REFUSED
def test_device_that_is_closed_or_missing(place: Place, helper: Path) -> None:
    with Space(['--mount', '--propagation=private'], place.device('600')) as space:
        line = space.line(uid=UID)
        assert '/dev/fuse: permission denied; as root: chmod 666 /dev/fuse' in message(place, line)
        assert '/dev/fuse: permission denied' in diagnosis(place, line)
    bare = 'mount -t tmpfs dev /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9'
    with Space(['--mount', '--propagation=private'], bare) as space:
        for uid in (None, UID):
            line = space.line(uid=uid)
            assert 'as root: modprobe fuse; in a container: --device /dev/fuse' in message(place, line)
            assert 'modprobe fuse' in diagnosis(place, line)


@REFUSED
def test_helper_that_is_missing_or_powerless(place: Place, helper: Path, open_device: Space) -> None:
    line = open_device.line(uid=UID)
    assert 'no user_allow_other' in message(place, line, '--allow-other')
    quiet = [*line, 'setpriv', '--no-new-privs']
    assert 'no_new_privs is set' in message(place, quiet)
    assert 'no_new_privs is set' in diagnosis(place, quiet)
    os.chown(place.root, 0, 0)
    assert f'{place.root}: this user may not write there' in message(place, line)
    os.chown(place.root, UID, UID)
    helper.chmod(0o755)
    assert f'{helper} is not setuid root; as root: chown root {helper} && chmod 4755 {helper}' in message(place, line)
    helper.unlink()
    if shutil.which('fusermount3') is None and shutil.which('fusermount') is None:
        assert 'fusermount3 was not found; install the package fuse3' in message(place, line)
        assert 'fusermount3 was not found' in diagnosis(place, line)


def test_user_without_a_name(place: Place, helper: Path, open_device: Space) -> None:
    """As a container has that is run with a number."""
    with pytest.raises(KeyError):
        pwd.getpwuid(NAMELESS)
    for folder in (place.root, place.folder / 'run'):
        os.chown(folder, NAMELESS, NAMELESS)
    for options in ([], ['--background', f'--log-file={place.folder / "run" / "log"}']):
        done = subprocess.run(
            [*open_device.line(uid=NAMELESS), place.binary, 'mount', *options, str(place.root)],
            env=place.environment(), capture_output=True, text=True, timeout=60, cwd='/',
        )  # fmt: skip
        assert done.returncode == 1
        assert f'user {NAMELESS} has no name, and fusermount3 asks for one' in done.stderr
