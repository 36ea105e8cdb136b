"""The manifest of an entry: its Python form, its bytes, and the checked way back (schema/manifest.fbs)."""

from __future__ import annotations

from overmind.manifest.decode import decode
from overmind.manifest.model import (
    FORMAT,
    PARAMETER,
    REQUIRES_GRAD,
    Arena,
    Listing,
    Manifest,
    Source,
    StorageRow,
    TensorRow,
)

__all__ = [
    'FORMAT',
    'PARAMETER',
    'REQUIRES_GRAD',
    'Arena',
    'Listing',
    'Manifest',
    'Source',
    'StorageRow',
    'TensorRow',
    'decode',
]
