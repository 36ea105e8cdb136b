"""OpenBLAS starts threads when it is loaded. A warm parent loads it with one; the child gets the caller's number."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

_VARIABLE = 'OPENBLAS_NUM_THREADS'
_VARIABLES = (_VARIABLE, 'GOTO_NUM_THREADS', 'OMP_NUM_THREADS')  # in the order in which OpenBLAS asks for them
_SETTERS = tuple(
    f'{prefix}openblas_set_num_threads{suffix}' for prefix in ('', 'scipy_') for suffix in ('', '64_', '_64')
)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Libraries that are loaded within it start no threads."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = '1'
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def loaded() -> list[str]:
    """The paths of the OpenBLAS libraries in this process."""
    with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as file:
        paths = {line.rstrip('\n').partition('/')[2] for line in file if 'openblas' in line}
    return sorted('/' + path for path in paths)


def set_threads(libraries: list[str], environment: Mapping[str, str], processors: int) -> None:
    """What each library would have done when it was loaded."""
    if not libraries:
        return
    import ctypes

    count = processors
    for name in _VARIABLES:
        value = environment.get(name, '')
        if value.isdecimal() and int(value) > 0:
            count = min(int(value), processors) if name != _VARIABLE else int(value)
            break
    for path in libraries:
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))
                break
