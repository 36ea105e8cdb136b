"""What a program sets in its environment before it imports its first library: kept beside what it imports.

A warm parent imports with the same settings. A program that sets something else in every run cannot be served.
"""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Iterator, Mapping

from overmind.run.identity import HARMLESS

_MOST_TIMES = 3

Changes = dict[str, 'str | None']  # None: removed


class Before:
    """The settings of a program, in a file."""

    def __init__(self, path: str) -> None:
        self.path = f'{path}.environment'
        self._changes: Changes = {}
        self._times = 0
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError), open(self.path, 'rb') as file:
            self._changes, self._times = marshal.load(file)

    @property
    def unsteady(self) -> bool:
        return self._times > _MOST_TIMES

    def about(self) -> str | None:
        """For people."""
        if not self._changes:
            return None
        names = ', '.join(self._changes)
        if self.unsteady:
            return f'nothing is imported in advance: it sets {names} to something else in every run'
        return f'imported as the program does it, after setting {names}'

    @property
    def changes(self) -> Changes:
        return {} if self.unsteady else self._changes

    def note(self, changes: Changes) -> None:
        if changes == self._changes or self.unsteady:
            return
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        new = f'{self.path}.{os.getpid()}'
        with open(new, 'wb') as file:
            marshal.dump((changes, self._times + 1), file)
        os.replace(new, self.path)


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """What leads from one environment to the other, but for variables that no library reads."""
    names = [*old, *(name for name in new if name not in old)]
    return {n: new.get(n) for n in names if old.get(n) != new.get(n) and n not in HARMLESS}


def changed(environment: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The environment that changes lead to."""
    merged = {**environment, **changes}
    return {name: value for name, value in merged.items() if value is not None}


@contextlib.contextmanager
def applied(changes: Changes) -> Iterator[None]:
    """os.environ with these changes."""
    old = dict(os.environ)
    _set(changed(old, changes))
    try:
        yield
    finally:
        _set(old)


def _set(environment: dict[str, str]) -> None:
    for name, value in difference(os.environ, environment).items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
