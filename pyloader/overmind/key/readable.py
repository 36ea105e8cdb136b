"""What went into a key, in words for a report; never for hashing."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from overmind.key.canonical import Encoder
from overmind.key.origin import is_first_party


def readable(value: object, data: bytes, encoder: Encoder) -> str:
    """In full where that is short, else with a fingerprint, so that what differs looks different."""
    shown = _short(value, encoder)
    return (
        shown if _is_told(value, encoder) and len(shown) < 120 else f'{shown} #{hashlib.sha256(data).hexdigest()[:8]}'
    )


def _is_told(value: Any, encoder: Encoder) -> bool:
    """Whether the short form says all about a value."""
    kind = type(value)
    if kind in (list, tuple):
        return len(value) <= 4 and all(_is_told(v, encoder) for v in value)
    if isinstance(value, type):
        return not is_first_party(kind.__module__) and not is_first_party(value.__module__)
    if kind in (str, int, float, bool, type(None)) or isinstance(value, os.PathLike):
        return True
    return (
        f'{kind.__module__}.{kind.__name__}' in ('torch.dtype', 'torch.device') or encoder.reference(value) is not None
    )


def _short(value: object, encoder: Encoder) -> str:
    if isinstance(value, (str, int, float, bool, type(None))):
        shown = str(value)
    elif isinstance(value, type):
        shown = f'{value.__module__}.{value.__qualname__}'
    elif isinstance(value, os.PathLike):
        shown = os.fspath(value)
    elif isinstance(value, (list, tuple)):
        shown = '[' + ', '.join(_short(v, encoder) for v in value[:4]) + (', ...]' if len(value) > 4 else ']')
    elif type(value).__module__ == 'torch':
        shown = str(value) if type(value).__name__ in ('dtype', 'device') else type(value).__name__
    else:
        token = encoder.reference(value)
        shown = f'{type(value).__name__} {token}' if token else type(value).__name__
    return shown if len(shown) <= 120 else shown[:117] + '...'
