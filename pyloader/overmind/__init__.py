"""overmind-fs: load a PyTorch model once, map it into every later process. See :mod:`overmind.api`."""

from __future__ import annotations

__version__ = '0.2.0'
