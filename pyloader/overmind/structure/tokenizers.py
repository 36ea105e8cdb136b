"""A Rust tokenizer in parts: its own pickle is one JSON text, whose parsing takes longer than all the rest of a hit.

The vocabulary and merges are pickled as Python objects and the model is built from them, about half the time.
Only where the tokenizer built this way is the same in every byte of its JSON; otherwise its own pickle is used.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

_PARTS = ('normalizer', 'pre_tokenizer', 'post_processor', 'decoder')


def build(
    vocab: dict[str, int] | list[str],
    merges: list[tuple[str, str]],
    options: dict[str, Any],
    parts: list[Any],
    added: list[Any],
    limits: tuple[Any, Any],
) -> Any:
    """The tokenizer from its parts. A list is the words in the order of their numbers."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    if isinstance(vocab, list):
        vocab = dict(zip(vocab, range(len(vocab)), strict=True))
    t = Tokenizer(BPE(vocab=vocab, merges=merges, **options))
    for name, part in zip(_PARTS, parts, strict=True):
        if part is not None:
            setattr(t, name, part)
    if added:
        t.add_tokens(added)
    truncation, padding = limits
    if truncation is not None:
        t.enable_truncation(**truncation)
    if padding is not None:
        t.enable_padding(**padding)
    _return_freed_memory()
    return t


def whole(tokenizer: Any) -> Any:
    """A tokenizer that :func:`parts` cannot take apart."""
    return tokenizer


def _return_freed_memory() -> None:
    """Building leaves 9 MB of freed pieces in the C heap for 50,000 words; half a millisecond gives them back."""
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # of glibc
    if trim is not None:
        trim(0)


def parts(t: Any) -> tuple[Any, ...] | None:
    """The arguments with which :func:`build` gives an equal ``tokenizers.Tokenizer``, or None where it would not.

    The strings of the merges are those of the vocabulary, so that a pickle, and a process that reads it, has each once.
    """
    text = t.to_str()
    model = json.loads(text)['model']
    if model.pop('type', None) != 'BPE':
        return None
    vocab = model.pop('vocab')
    own = {word: word for word in vocab}
    pairs: Any = (m if isinstance(m, list) else m.split(' ', 1) for m in model.pop('merges'))
    merges = [(own.get(a, a), own.get(b, b)) for a, b in pairs]
    added = [a for _, a in sorted(t.get_added_tokens_decoder().items())]
    words = sorted(vocab, key=vocab.__getitem__)
    dense = [vocab[w] for w in words] == list(range(len(words)))
    found = (
        words if dense else vocab,
        merges,
        model,
        [getattr(t, p) for p in _PARTS],
        added,
        (t.truncation, t.padding),
    )
    try:
        same = build(*found).to_str() == text
    except Exception:  # options that this version does not take: its own pickle serves
        same = False
    return found if same else None
