"""A Rust tokenizer in parts: its own pickle is one JSON text, whose parsing takes longer than all the rest of a hit.

The vocabulary and merges are pickled as Python objects and the model is built from them, about half the time.
Only where the tokenizer built this way is the same in every byte of its JSON; otherwise its own pickle is used.
"""

from __future__ import annotations

import ctypes
import io
import json
import pickle
from typing import Any

from overmind.errors import Unpicklable

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


def attributes(t: Any) -> bytes:
    """What somebody has set on a tokenizer, of which its own pickle has nothing: CLIP's gets a ``decode`` of its own,
    which calls that of the class. Empty where there is nothing."""
    found = getattr(t, '__dict__', None)
    if not found:
        return b''
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> Any:
            if any(c.__name__ == 'PreTrainedTokenizerBase' for c in type(obj).__mro__):
                raise Unpicklable('an attribute of a Rust tokenizer refers to that of transformers')
            return True if obj is t else None

    out = io.BytesIO()
    Pickler(out, protocol=5).dump(dict(found))
    return out.getvalue()


def set_attributes(t: Any, data: bytes) -> None:
    """Before that the tokenizer has none, so that its own methods are found where they are referred to."""
    if not data:
        return
    unpickler = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = lambda _: t  # type: ignore[method-assign]
    for name, value in unpickler.load().items():
        setattr(t, name, value)
