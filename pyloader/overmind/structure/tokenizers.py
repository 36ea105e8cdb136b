"""A Rust tokenizer in parts: its own pickle is one JSON text, whose parsing takes longer than all the rest of a hit.

The vocabulary and merges go into the pickle as Python objects and the model is built from them, about half the time.
Only where the tokenizer built this way is the same in every byte of its JSON; otherwise its own pickle is used.
"""

from __future__ import annotations

import json
from typing import Any

_PARTS = ('normalizer', 'pre_tokenizer', 'post_processor', 'decoder')


def build(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    options: dict[str, Any],
    parts: list[Any],
    added: list[Any],
    limits: tuple[Any, Any],
) -> Any:
    """The tokenizer from its parts; called by structure.pkl."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

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
    return t


def reduce(t: Any, merges: Any) -> Any:
    """The reduction of a ``tokenizers.Tokenizer``; merges is an equal list that is pickled anyway, or None."""
    text = t.to_str()
    model = json.loads(text)['model']
    if model.pop('type', None) != 'BPE':
        return NotImplemented
    vocab = model.pop('vocab')
    own = [tuple(m) if isinstance(m, list) else tuple(m.split(' ', 1)) for m in model.pop('merges')]
    if merges is not None and list(map(tuple, merges)) == own:
        own = merges
    added = [a for _, a in sorted(t.get_added_tokens_decoder().items())]
    arguments = (vocab, own, model, [getattr(t, p) for p in _PARTS], added, (t.truncation, t.padding))
    try:
        same = build(*arguments).to_str() == text
    except Exception:  # options that this version does not take: its own pickle serves
        same = False
    return (build, arguments) if same else NotImplemented
