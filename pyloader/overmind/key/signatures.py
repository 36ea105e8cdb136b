"""Signatures of loaders; to look at one takes inspect as long as some keys take in all."""

from __future__ import annotations

import inspect
import types
import weakref
from typing import Any

_signatures: weakref.WeakKeyDictionary[Any, inspect.Signature | None] = weakref.WeakKeyDictionary()


def signature_of(fn: Any) -> tuple[inspect.Signature | None, int]:
    """The signature of a callable, and how many leading parameters it fills itself."""
    target, skip = (fn.__func__, 1) if isinstance(fn, types.MethodType) else (fn, 0)
    # The auto classes of transformers have copies of a bound method; what inspect says of them is without the class.
    if skip and isinstance(inspect.unwrap(target, stop=_is_method), types.MethodType):
        skip = 0
    try:
        return _signatures[target], skip
    except KeyError:
        pass
    except TypeError:
        return _inspect(target), skip
    signature = _signatures[target] = _inspect(target)
    return signature, skip


def _is_method(fn: Any) -> bool:
    return isinstance(fn, types.MethodType)


def _inspect(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None
