"""Loads that make part of their result up, such as a new classification head.

Every plain load would give another one, so a cached one would be wrong. A load that moved a random state is done again
under another seed, and cached only if all bytes agree.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def states() -> dict[str, Any]:
    """The random states of torch, numpy and ``random``; libraries that are not loaded have none."""
    found: dict[str, Any] = {'random': random.getstate()}
    torch, numpy = sys.modules.get('torch'), sys.modules.get('numpy')
    if torch is not None and hasattr(torch, 'get_rng_state'):
        found['torch'] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found['cuda'] = torch.cuda.get_rng_state_all()
    if numpy is not None and 'numpy.random' in sys.modules:
        found['numpy'] = numpy.random.get_state()
    return found


def moved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Which of the generators that were there before have moved."""
    return [name for name, state in before.items() if not _same(state, after[name])]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, 'tolist'):
        return bool(a.tolist() == b.tolist())
    return bool(a == b)


def restore(state: dict[str, Any]) -> None:
    """Put the generators back."""
    random.setstate(state['random'])
    if 'torch' in state:
        sys.modules['torch'].set_rng_state(state['torch'])
    if 'cuda' in state:
        sys.modules['torch'].cuda.set_rng_state_all(state['cuda'])
    if 'numpy' in state:
        sys.modules['numpy'].random.set_state(state['numpy'])


def reseed() -> None:
    """Any other seed will do; the caller restores the states afterwards."""
    random.seed(0x5EED)
    if 'torch' in sys.modules:
        sys.modules['torch'].manual_seed(0x5EED)
    if 'numpy.random' in sys.modules:
        sys.modules['numpy'].random.seed(0x5EED)
