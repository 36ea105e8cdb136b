"""What can go wrong. Nothing of this reaches a program unless ``OVERMIND_STRICT=1``."""

from __future__ import annotations


class OvermindError(Exception):
    """Base of all errors of this package."""


class Bypass(OvermindError):
    """A call or its result that cannot be cached; the text says why. The program gets the real loader's object."""


class Unkeyable(Bypass):
    """An argument has no canonical form, so two calls cannot be told to be equal."""


class Unpicklable(Bypass):
    """The result holds something that cannot be rebuilt in another process."""


class StoreError(OvermindError):
    """The cache itself failed: no mount, a dead or hanging daemon, no room, a refused commit."""


class Hangs(StoreError):
    """The daemon did not answer in time."""


class StillHangs(Hangs):
    """It did not answer a moment ago, and is left alone for a while; the text has a number that changes."""


class CorruptEntry(StoreError):
    """An entry is not what its manifest says. Raised before any of its memory is used."""
