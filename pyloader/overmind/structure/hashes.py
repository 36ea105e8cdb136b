"""A generation config keeps its own hash, to see whether it was changed. Python's hashes are others in each process."""

from __future__ import annotations

from typing import Any

_NAME = '_original_object_hash'


def has_one(t: type) -> bool:
    """Whether instances of a class may have their hash among their attributes."""
    return hasattr(t, 'from_model_config')


def reduced(obj: Any) -> Any:
    """What structure.pkl has of one that was not changed; None for others."""
    kept = getattr(obj, '__dict__', {}).get(_NAME)
    if kept is None or kept != hash(obj):
        return None
    parts = obj.__reduce_ex__(4)
    if len(parts) < 3 or type(parts[2]) is not dict or hasattr(obj, '__setstate__'):
        return None
    text = obj.to_json_string(ignore_metadata=True)
    known = text if hash(text) == kept else None  # what it is the hash of: to make it again takes 0.2 ms
    return (*parts[:2], ({**parts[2], _NAME: None}, known), None, None, set_state)


def set_state(obj: Any, state: tuple[dict[str, Any], str | None]) -> None:
    """Called by structure.pkl."""
    attributes, text = state
    vars(obj).update(attributes)
    vars(obj)[_NAME] = hash(obj if text is None else text)
