"""The process of one fill with ``OVERMIND_FILL=subprocess``: runs the loader, commits the entry, says what came of it.

Started by :mod:`overmind.fill_process`, which holds the lock of the id. The descriptor of that lock is inherited, so it
stays held while this process lives, whatever becomes of the parent; and the kernel ends this process with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import sys
import traceback
import types
from typing import Any

from overmind import chance
from overmind.errors import Bypass, OvermindError
from overmind.handover import Answer, Job, parcel
from overmind.nesting import uncached

_PR_SET_PDEATHSIG = 1
_kept: list[Any] = []  # a module that goes away has its names cleared


class _Main(types.ModuleType):
    """``__main__`` with what the call brought along. Notes the names of the parent's that were looked for in vain, as a
    pickle in a checkpoint does: the loader must then run in the parent."""

    def __init__(self, names: list[str]) -> None:
        super().__init__('__main__')
        self.__dict__['_overmind'] = (frozenset(names), [])

    def __getattr__(self, name: str) -> Any:
        known, missing = self.__dict__['_overmind']
        if name in known:
            missing.append(name)
        raise AttributeError(f"module '__main__' has no attribute '{name}'")


class _Missing(Exception):
    pass


def main(fd: int) -> None:
    """Read the job from a memory file and put the answer in its place. Does not return."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches the whole group of the terminal; the parent decides, and ends us. Not SIG_IGN, which our own
    # children would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    os.set_inheritable(fd, False)
    with open(fd, 'r+b') as file:
        job: Job = pickle.load(file)
        if os.getppid() != job.parent:
            os._exit(1)
        answer = pickle.dumps(_work(job))
        file.seek(0)
        file.truncate()
        file.write(answer)
    # What the program would do at its end, but no teardown: some libraries crash in it.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _work(job: Job) -> Answer:
    try:
        _become(job)
        fn, args, kwargs = job.call.open()
    except BaseException as e:
        return Answer('refused', f'the call cannot be repeated in another process: {type(e).__name__}: {e}')
    with contextlib.ExitStack() as modes:
        try:
            _set_torch(dict(job.facts), modes)
            return _fill(job, fn, args, kwargs)
        except Bypass as e:
            return Answer('refused', str(e))
        except OvermindError as e:
            return Answer('failed', str(e))
        except BaseException as e:
            return Answer('failed', f'{type(e).__name__}: {e}')


def _become(job: Job) -> None:
    """As far as a loader or a key can tell, the parent's process."""
    from overmind.locks import adopt
    from overmind.logs import configure
    from overmind.patches.engine import patch

    os.environ['OVERMIND_FILL'] = 'inline'
    configure()
    adopt(job.lock)
    sys.argv[:] = job.argv
    main = _Main(job.main_names)
    if job.main_file is not None:
        main.__file__ = job.main_file
    _kept.append(sys.modules['__main__'])
    sys.modules['__main__'] = main
    if job.points is not None:
        patch(job.points)
    if 'torch' in job.random:
        import torch  # noqa: F401
    if 'numpy' in job.random:
        import numpy.random  # noqa: F401
    chance.restore(job.random)


def _set_torch(facts: dict[str, str], modes: contextlib.ExitStack) -> None:
    """The parent's modes of torch, which are part of the key."""
    dtype, device, gradients = (facts.get(f'torch {n}', '') for n in ('default dtype', 'default device', 'gradients'))
    if (dtype, device, gradients) == ('float32', 'cpu', 'on'):
        return
    import torch

    torch.set_default_dtype(getattr(torch, dtype))
    if device != 'cpu':
        torch.set_default_device(device)
    if gradients != 'on':
        modes.enter_context(torch.inference_mode() if gradients == 'inference' else torch.no_grad())


def _fill(job: Job, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    from overmind.fill import Fill
    from overmind.key.lookup import LookupKey, lookup
    from overmind.references import References, Registry
    from overmind.statistics import Load
    from overmind.store import Store

    def rekey() -> LookupKey:
        return lookup(fn, args, kwargs, lambda _: None)

    key = rekey()
    if key.digest != job.digest:
        return Answer('different', facts=key.facts)
    raised: list[BaseException] = []
    missing: list[str] = sys.modules['__main__'].__dict__['_overmind'][1]

    def call() -> Any:
        missing.clear()
        try:
            with uncached():
                result = fn(*args, **kwargs)
        except BaseException as e:
            if missing:
                raise _Missing from e
            raised.append(e)
            raise
        if missing:
            raise _Missing
        return result

    store, load = Store(*job.store), Load(key.loader)
    handle = store.attend(job.id)
    try:
        with contextlib.ExitStack() as held:
            fill = Fill(store, References(Registry(), {}), load, job.patched, held)
            fill.run(call, key, rekey)
    except _Missing:
        return Answer('missing', ', '.join(dict.fromkeys(missing)))
    except BaseException as e:
        if not raised or e is not raised[-1]:
            raise
        return _raised(e)
    finally:
        handle.release()
    return Answer('filled', id=fill.id, seconds=load.seconds, nbytes=load.nbytes, shared=load.shared)


def _raised(e: BaseException) -> Answer:
    text = ''.join(traceback.format_exception(type(e), e, e.__traceback__))
    try:
        packed = parcel(e)
    except Exception:
        packed = None
    return Answer('raised', text, exception=packed)
