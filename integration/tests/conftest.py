"""Mounts and children, and the check that none of them is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.checkpoints import build
from integration.harness.conversation import Conversation, Dialogue
from integration.harness.daemon import DEFAULT_WAY, WAYS, Daemon, detach, mounts_under
from integration.harness.forkserver import ForkServer
from integration.harness.holdings import Holdings, watched
from integration.harness.places import checkpoint_folder, daemon_binary
from integration.harness.runs import environment, run

StartChild = Callable[..., Conversation]
ForkChild = Callable[..., Dialogue]

every_way = pytest.mark.parametrize('way', WAYS, indirect=True)
every_shared_way = pytest.mark.parametrize('way', [way for way in WAYS if way != 'read'], indirect=True)


def pytest_configure() -> None:
    """As in a terminal: what a script runs in the background starts with these ignored, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With OVERMIND_E2E_WAY everything, but what the run without it has done under each way, and what is marked with
    ``one_way`` and a reason."""
    if DEFAULT_WAY not in WAYS:
        raise pytest.UsageError(f'OVERMIND_E2E_WAY is one of {", ".join(WAYS)}, not {DEFAULT_WAY!r}')
    for item in items:
        marker = item.get_closest_marker('one_way')
        if marker and not marker.args:
            raise pytest.UsageError(f'{item.nodeid}: one_way needs a reason')
    if DEFAULT_WAY == 'passthrough':
        return
    kept = [item for item in items if not item.get_closest_marker('one_way') and not _ran_under_each_way(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _ran_under_each_way(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, 'callspec', None), 'params', {})
    return not chosen.keys().isdisjoint({'way', 'served', 'cached'})


def daemons_under(folder: Path) -> list[int]:
    """Processes that were started as a daemon for a mount point in a folder, whoever is their parent now."""
    found = []
    for process in Path('/proc').iterdir():
        if not process.name.isdigit():
            continue
        try:
            line = (process / 'cmdline').read_bytes().split(b'\0')
        except OSError:
            continue
        if line[0].endswith(b'overmind-fs') and any(part.startswith(os.fsencode(folder)) for part in line[1:]):
            found.append(int(process.name))
    return found


@pytest.fixture(scope='session', autouse=True)
def _built() -> None:
    if not daemon_binary().exists():
        pytest.exit(f'{daemon_binary()} does not exist: run `make build` first', returncode=3)


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    mounts, daemons = mounts_under(tmp_path), daemons_under(tmp_path)
    detach(tmp_path)
    assert (mounts, daemons) == ([], [])


def serving(root: Path, way: str, *options: str) -> Daemon:
    """A daemon whose arenas are reached that way; skips where this machine has no passthrough."""
    daemon = Daemon(root, *WAYS[way], *options).start()
    status = json.loads((root / 'status.json').read_text())
    if way == 'passthrough' and not status['passthrough']['active']:
        daemon.stop()
        pytest.skip(f'no passthrough: {status["passthrough"]["reason"]}')
    active = [name for name in ('passthrough', 'fd_passing') if status[name]['active']]
    assert active == {'passthrough': ['passthrough', 'fd_passing'], 'fd': ['fd_passing'], 'read': []}[way]
    return daemon


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    """For tests that are marked with ``every_way`` or ``every_shared_way``; the best there is for others."""
    chosen: str = getattr(request, 'param', '')
    return chosen


@pytest.fixture
def daemon(tmp_path: Path, way: str, _nothing_left: None) -> Iterator[Daemon]:
    way = way or os.environ.get('OVERMIND_E2E_WAY', '')
    started = serving(tmp_path / 'mnt', way) if way else Daemon(tmp_path / 'mnt').start()
    with started:
        yield started


# What is seen when a load returns is seen by the next line of a test; test_background.py has the others.
_WAITS = {'OVERMIND_FILL': 'inline'}


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Start ``integration.tests.child`` with a root and other variables of the environment."""
    with ExitStack() as stack:

        def start(root: Path | None, **variables: str) -> Conversation:
            line = [sys.executable, '-m', 'integration.tests.child']
            child = stack.enter_context(Conversation(line, environment(root, **{**_WAITS, **variables})))
            child.read()
            return child

        yield start


@pytest.fixture(scope='session')
def forkserver() -> Iterator[ForkServer]:
    with ForkServer([sys.executable, '-m', 'integration.tests.child'], environment()) as server:
        yield server


@pytest.fixture
def fork_child(forkserver: ForkServer) -> Iterator[ForkChild]:
    """As start_child, in no time; stderr is a descriptor for the child's standard error.

    A slow machine is not taken for a daemon that hangs.
    """
    with ExitStack() as stack:

        def fork(root: Path | None, stderr: int | None = None, **variables: str) -> Dialogue:
            child = stack.enter_context(
                forkserver.fork(environment(root, **{'OVERMIND_DEADLINE': '60', **_WAITS, **variables}), stderr)
            )
            child.read()
            return child

        yield fork


@pytest.fixture
def holdings(daemon: Daemon) -> Iterator[Holdings]:
    """For every test of a fault: the checks at its end, when its children are gone."""
    with watched(daemon) as held:
        yield held


@pytest.fixture(scope='session')
def checkpoint() -> Path:
    return build(checkpoint_folder('tiny', 'fp16'), 'tiny', 'fp16')


@dataclass
class Served:
    """One cache after the program has run without the cache, then with it twice."""

    root: Path
    way: str
    plain: dict[str, Any]
    first: dict[str, Any]
    second: dict[str, Any]

    def entry(self, class_name: str) -> Path:
        """The one entry of a class; ids begin with the class."""
        found = [path for path in (self.root / 'pipelines').iterdir() if path.name.startswith(class_name)]
        assert len(found) == 1, found
        return found[0]


_MEASURED = ('--touch', '--weights', '--forward')


@pytest.fixture(scope='session')
def plain(checkpoint: Path) -> dict[str, Any]:
    return run(checkpoint, *_MEASURED)


@contextmanager
def place(root: Path, way: str) -> Iterator[None]:
    """A cache that is reached that way, also one without a daemon."""
    if way == 'directory':
        root.mkdir()
        yield
    else:
        with serving(root, way):
            yield


@pytest.fixture(scope='session', params=[*WAYS, 'directory'])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, plain: dict[str, Any]
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp('served')
    root = folder / 'mnt'
    with place(root, request.param):
        env = environment(root, OVERMIND_STRICT='1')
        first, second = [run(checkpoint, *_MEASURED, '--cache', env=env) for _ in range(2)]
        yield Served(root, request.param, plain, first, second)
    assert mounts_under(folder) == []
    assert daemons_under(folder) == []


@dataclass
class Cached:
    """One mount that holds the assorted tensors of the children's loaders."""

    root: Path
    entry: Path


@pytest.fixture(scope='session', params=WAYS)
def cached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cached]:
    folder = tmp_path_factory.mktemp('cached')
    line = [sys.executable, '-m', 'integration.tests.child']
    with serving(folder / 'mnt', request.param) as started:
        with Conversation(line, environment(started.root, OVERMIND_STRICT='1')) as child:
            child.read()
            assert child.ask('load assorted')['misses'] == 1
        (entry,) = (started.root / 'pipelines').iterdir()
        yield Cached(started.root, entry)
