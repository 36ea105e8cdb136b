"""A miss whose loader runs in another process: nothing that it leaves behind is left in this one."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from typing import Any

from overmind import chance
from overmind.errors import Bypass, StoreError
from overmind.handover import Answer, Job, Parcel, parcel
from overmind.key.lookup import LookupKey
from overmind.locks import Lock
from overmind.logs import warn_once
from overmind.patches.engine import project_points
from overmind.staging import Staging
from overmind.statistics import Load
from overmind.store import Store

# With -m or a path, the current folder or this package's would come first in sys.path, and shadow the standard library.
_BOOT = 'import sys; sys.path[:] = sys.argv[2:]; from overmind.fill_worker import main; main(int(sys.argv[1]))'

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class _InOtherProcess(Exception):
    """The traceback of the loader, as the cause of the exception that came from it."""

    def __str__(self) -> str:
        return f'\n\n{self.args[0]}'


class Raised(Exception):
    """The loader raised ``exception``, in another process; ``cause`` shows where."""

    def __init__(self, exception: BaseException, text: str) -> None:
        super().__init__(exception)
        self.exception, self.cause = exception, _InOtherProcess(text)


def pack(call: Call) -> Parcel | None:
    """The call for another process; None, and a warning, where it cannot be sent there."""
    if not sys.executable or getattr(sys, 'frozen', False):
        why = 'there is no interpreter to start'
    else:
        try:
            return parcel(call)
        except Exception as e:
            why = f'the call cannot be pickled ({type(e).__name__}: {e})'
    _warn(why)
    return None


def _warn(why: str) -> None:
    warn_once(f'fill inline {why}', f'OVERMIND_FILL=subprocess: loading in this process instead, since {why}')


def fill(store: Store, lock: Lock, key: LookupKey, call: Parcel, patched: bool, load: Load) -> str | None:
    """Fill the entry under the lock that the caller holds; returns its id, another one where a hub name got a commit.

    None, and a warning, where the loader has to run in this process.

    Raises Raised where the loader did, Bypass where the call cannot be cached so, StoreError where the cache failed.
    """
    states = chance.states()
    states.pop('cuda', None)  # would make a context there
    main = sys.modules.get('__main__')
    job = Job(
        parent=os.getpid(),
        lock=lock.fd,
        store=(store.root, store.deadline, store.access),
        id=key.id,
        digest=key.digest,
        facts=key.facts,
        patched=patched,
        points=project_points(),
        argv=list(sys.argv),
        main_file=getattr(main, '__file__', None),
        main_names=[n for n in vars(main) if not n.startswith('__')] if main is not None else [],
        random=states,
        call=call,
    )
    start = time.perf_counter()
    done = False
    try:
        answer = _run(job)
        done = answer.outcome == 'filled'
    finally:
        if not done:
            with contextlib.suppress(OSError, StoreError):
                store.guard(Staging(store, key.id).drop, 60)
    if answer.outcome == 'missing':
        _warn(f'the loader looks for {answer.text} in __main__')
        return None
    if not done:
        _explain(answer, key)
    load.seconds.update(answer.seconds, process=time.perf_counter() - start)
    load.nbytes, load.shared = answer.nbytes, answer.shared
    return answer.id


def _run(job: Job) -> Answer:
    with open(os.memfd_create('overmind-fill'), 'r+b') as file:
        asked = pickle.dumps(job)
        file.write(asked)
        file.seek(0)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        paths = [p for p in sys.path if isinstance(p, str)]
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, '-c', _BOOT, str(file.fileno()), *paths], pass_fds=(file.fileno(), job.lock)
            )
        except OSError as e:
            raise StoreError(f'{sys.executable} cannot be started to fill {job.id}: {e.strerror}') from e
        try:
            status = process.wait()
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
        file.seek(0)
        data = file.read()
    try:
        answer = None if data == asked else pickle.loads(data)
    except Exception:
        answer = None
    if not isinstance(answer, Answer):
        raise Bypass(f'the process that was to load it ended {_how(status)}')
    return answer


def _how(status: int) -> str:
    if status >= 0:
        return f'with status {status}'
    try:
        return f'by {signal.Signals(-status).name}'
    except ValueError:
        return f'by signal {-status}'


def _explain(answer: Answer, key: LookupKey) -> None:
    if answer.outcome == 'raised':
        e = _exception(answer.exception)
        if e is None:
            last = answer.text.strip().rpartition('\n')[2]
            raise Bypass(f'the exception of the loader cannot be brought back from its process: {last}')
        raise Raised(e, answer.text)
    if answer.outcome == 'different':
        there = dict(answer.facts)
        names = [n for n, v in key.facts if there.get(n) != v] + [n for n in there if n not in dict(key.facts)]
        which = ', '.join(dict.fromkeys(names)) or 'a long argument'
        raise Bypass(f'in another process the call has another key; different: {which}')
    if answer.outcome == 'refused':
        raise Bypass(answer.text)
    raise StoreError(answer.text)


def _exception(packed: Parcel | None) -> BaseException | None:
    try:
        e = packed.open() if packed is not None else None
    except Exception:
        return None
    return e if isinstance(e, BaseException) else None
