"""The resident process: imports what was learnt, then forks a keeper for each caller."""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from overmind.run import blas, keeper, starter
from overmind.run.before import Before, Changes, applied
from overmind.run.cached import needed
from overmind.run.folders import Place, credentials
from overmind.run.learnt import Learnt, site_folders
from overmind.run.preload import Preloaded, library_folders, preload
from overmind.run.shadow import own_folders
from overmind.run.watch import Reads, Watch, made_of

_MOST_STARTS = 6  # each one leaves out what spoiled the one before


@dataclass
class Parent:
    """What a keeper needs to know of the process that it was forked from."""

    launch: starter.Launch
    pid: int
    watch: Watch
    preloaded: Preloaded
    known: frozenset[str]  # modules that are here, or are not to be imported in advance
    own: list[str]  # folders of the user's own code on sys.path, before those of the libraries
    later: list[str]  # and behind them
    openblas: list[str]
    said: tuple[bytes, bytes]  # what imports wrote to standard output and standard error
    streams: tuple[object, object, object]
    changes: Changes  # of the environment, with which the imports were done
    before: frozenset[str]  # modules of a new interpreter


def serve(launch_fd: int, before: frozenset[str]) -> bool:
    """Returns in a child only, where the program is to start: whether there is a sitecustomize of the user's."""
    launch = starter.Launch.read(launch_fd)
    for fd in (launch.listening, launch.warming):
        if fd >= 0:
            os.set_inheritable(fd, False)
    listening = socket.socket(fileno=launch.listening)
    listening.listen(128)  # once more, so that the kernel names this process to those who connect
    os.close(launch.up)
    _restore_environment(launch)
    reads = Reads()
    reads.start()
    customized = _user_sitecustomize()
    parent = _warm(launch, reads, before)
    if launch.replaces:
        _take_over(launch)
    _detach()
    child = _loop(parent, listening)
    listening.close()
    child()
    return customized


def _restore_environment(launch: starter.Launch) -> None:
    path = launch.environment.get('PYTHONPATH')
    if path is None:
        del os.environ['PYTHONPATH']
    else:
        os.environ['PYTHONPATH'] = path


def _user_sitecustomize() -> bool:
    try:
        __import__('sitecustomize')
    except ImportError as e:
        if e.name != 'sitecustomize':
            raise
        return False
    return True


def _warm(launch: starter.Launch, reads: Reads, before: frozenset[str]) -> Parent:
    main, learnt, settings = sys.modules['__main__'], Learnt.read(launch.learnt), Before(launch.learnt)
    sys.argv[1:] = []
    if launch.program[0] != '-m':
        main.__file__ = launch.program[0]  # some libraries take a program without it for an interactive session
    gc.disable()
    learnt.modules.update(dict.fromkeys(needed(learnt.modules)))
    names = frozenset(learnt.modules)
    if launch.starts >= _MOST_STARTS or settings.unsteady:
        learnt.modules.clear()
    with applied(settings.changes):
        preloaded = preload(learnt, launch.folder, before)
    if preloaded.again:
        starter.start(launch.but(starts=launch.starts + 1))
        os._exit(0)
    gc.enable()
    if launch.program[0] != '-m':
        del main.__file__
    reads.stop()
    sites = site_folders(sys.path)
    libraries = library_folders()
    behind = max((at for at, path in enumerate(sys.path) if os.path.join(path, '') in libraries), default=0)
    own = own_folders(sys.path[:behind], libraries)
    later = own_folders(sys.path[behind:], libraries)
    ours = [*own, *later, launch.folder, os.path.dirname(launch.learnt)]
    watch = made_of(reads, tuple(os.path.join(path, '') for path in ours), sites)
    if not settings.unsteady:
        watch.add(settings.path)
    known = frozenset(sys.modules) | names
    said = (_said(1), _said(2))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    parent = Parent(
        launch=launch,
        pid=os.getpid(),
        watch=watch,
        preloaded=preloaded,
        known=known,
        own=own,
        later=later,
        openblas=blas.loaded(),
        said=said,
        streams=streams,
        changes=settings.changes,
        before=before,
    )
    _describe(parent, learnt)
    return parent


def _said(fd: int) -> bytes:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open(f'/proc/self/fd/{fd}', 'rb') as file:
        return file.read()


def _describe(parent: Parent, learnt: Learnt) -> None:
    """For ``--list`` and ``--explain``."""
    launch = parent.launch
    description = {
        'program': ' '.join([launch.python, *launch.options, *launch.program]),
        'cwd': launch.cwd,
        'modules': len([name for name in learnt.wanted if name in sys.modules]),
        'files': len(parent.watch),
        'since': time.time(),
    }
    path = launch.place.path('description')
    with open(path + '.new', 'wb') as file:
        marshal.dump(description, file)
    os.replace(path + '.new', path)


def _take_over(launch: starter.Launch) -> None:
    """The name of the socket, from the parent that served while this one was importing."""
    place = launch.place
    with place.locked():
        if starter.serving(place) != launch.replaces:
            os._exit(0)  # that was stopped or replaced meanwhile
        os.kill(launch.replaces, signal.SIGTERM)  # first, so that whenever this process is killed, only one is left
        os.replace(place.path(starter.SUCCESSOR), place.path(starter.SOCKET))
    os.close(launch.warming)


def _detach() -> None:
    os.chdir('/')
    os.dup2(0, 1)
    gc.collect()
    gc.freeze()
    if (collector := sys.modules.get('overmind.collector')) is not None:
        collector.leave_young()  # in the children, which have it already
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need nobody to wait for them


def _loop(parent: Parent, listening: socket.socket) -> keeper.Start:
    """Fork a keeper for each caller until nobody has come for a while. Returns in a child of a keeper."""
    idle = parent.launch.idle_seconds
    while True:
        readable, _, _ = select.select([listening], [], [], idle)
        if not readable:
            _end(parent.launch.place, listening)
            continue
        connection, _ = listening.accept()
        if credentials(connection)[1] == os.geteuid():
            pid = os.fork()
            if pid == 0:
                listening.close()
                return keeper.keep(connection, parent)
        connection.close()


def _end(place: Place, listening: socket.socket) -> None:
    """Go, if nobody connects while the name of the socket is taken away."""
    with place.locked():
        readable, _, _ = select.select([listening], [], [], 0)
        if readable:
            return
        if starter.serving(place) == os.getpid():
            os.unlink(place.path(starter.SOCKET))
    os._exit(0)
