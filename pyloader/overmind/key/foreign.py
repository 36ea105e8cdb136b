"""Canonical bytes for values of torch, numpy, transformers and diffusers, none of which is imported here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overmind.key.wire import Refused, pack, pack_all, text

if TYPE_CHECKING:
    from overmind.key.canonical import Encoder

MAX_ARRAY = 1 << 20
_ABSENT = object()

_CONFIG_BASES = frozenset({
    'PretrainedConfig', 'PreTrainedConfig', 'QuantizationConfigMixin', 'GenerationConfig', 'PeftConfigMixin',
})  # fmt: skip
# Of a configuration, to_dict() leaves these out, and from_pretrained obeys them.
_HIDDEN = ('_attn_implementation', '_experts_implementation')


def is_module(value: Any) -> bool:
    nn = sys.modules.get('torch.nn')
    return nn is not None and isinstance(value, nn.Module)


def encode(encoder: Encoder, value: Any, kind: type) -> bytes | None:
    """The bytes of a library's value, or None where this module knows nothing about its type."""
    handler = _handlers.get(kind, _ABSENT)
    if handler is _ABSENT:
        handler = _handlers[kind] = _find(kind)
    return None if handler is None else handler(encoder, value)


def _find(kind: type) -> Callable[[Encoder, Any], bytes] | None:
    torch = sys.modules.get('torch')
    if torch is not None and hasattr(torch, 'memory_format'):
        if kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
            return _by_text
        if kind is torch.Size:
            return _size
        if issubclass(kind, torch.Tensor):
            return _tensor
    numpy = sys.modules.get('numpy')
    if numpy is not None and hasattr(numpy, 'generic'):
        if issubclass(kind, numpy.dtype):
            return _numpy_dtype
        if kind is numpy.ufunc:
            return _by_text
        if issubclass(kind, (numpy.generic, numpy.ndarray)):
            return _array
    for base in kind.__mro__:
        library = base.__module__.partition('.')[0]
        if library in ('transformers', 'diffusers', 'peft') and base.__name__ in _CONFIG_BASES:
            return _config
        if library == 'diffusers' and base.__name__ == 'FrozenDict':
            return _frozen_dict
        if library == 'tokenizers' and base.__name__ == 'AddedToken':
            return _added_token
    return None


_handlers: dict[type, Any] = {}


def _by_text(encoder: Encoder, value: Any) -> bytes:
    kind = type(value)
    return pack_all(b'k', (text(kind.__name__), text(str(value))))


def _size(encoder: Encoder, value: Any) -> bytes:
    return encoder.items(b'z', tuple(value))


def _tensor(encoder: Encoder, value: Any) -> bytes:
    torch = sys.modules['torch']
    kind = type(value)
    plain = kind in (torch.Tensor, torch.nn.Parameter) and value.device.type == 'cpu' and value.layout == torch.strided
    if not plain or value.is_quantized:
        raise Refused(f'{kind.__name__} on {value.device} did not come from the cache')
    if value.requires_grad and not value.is_leaf:
        raise Refused('a tensor that is part of an autograd graph')
    nbytes = value.numel() * value.element_size()
    if nbytes > MAX_ARRAY:
        raise Refused(f'a tensor of {nbytes} bytes did not come from the cache')
    facts = (kind.__name__, str(value.dtype), tuple(value.shape), tuple(value.stride()), value.requires_grad)
    if value._backward_hooks:
        raise Refused('a tensor with gradient hooks')
    more = encoder.any(value.grad) + encoder.attributes(vars(value))
    flat = value.detach().resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(flat.data_ptr(), nbytes) if nbytes else b''
    return pack_all(b'X', (encoder.items(b't', facts), pack(b'b', data), more))


def _numpy_dtype(encoder: Encoder, value: Any) -> bytes:
    if value.hasobject:
        raise Refused('a numpy array of Python objects cannot be compared between processes')
    return pack_all(b'N', (text(value.str), text(repr(value))))


def _array(encoder: Encoder, value: Any) -> bytes:
    if value.nbytes > MAX_ARRAY:
        raise Refused(f'an array of {value.nbytes} bytes; arrays are compared up to {MAX_ARRAY}')
    facts = (encoder.named_type(type(value)), _numpy_dtype(encoder, value.dtype), encoder.items(b't', value.shape))
    # A result may have the order of its argument, and what a subclass adds.
    more = encoder.items(b't', value.strides) + encoder.attributes(getattr(value, '__dict__', {}))
    return pack_all(b'A', (*facts, pack(b'b', value.tobytes()), more))


def _config(encoder: Encoder, value: Any) -> bytes:
    try:
        facts = value.to_dict()
    except Exception as e:
        raise Refused(f'{type(value).__name__}.to_dict() failed: {e}') from None
    peft = type(value).__module__.startswith('peft.')
    hidden = {k: v for k, v in vars(value).items() if k.startswith(_HIDDEN) or (peft and k not in facts)}
    return encoder.named(b'C', type(value), encoder.mapping(facts), encoder.attributes(hidden))


def _frozen_dict(encoder: Encoder, value: Any) -> bytes:
    # Every entry is an attribute as well; encoding both would only cost time.
    return encoder.named(b'C', type(value), encoder.mapping(value))


def _added_token(encoder: Encoder, value: Any) -> bytes:
    return encoder.named(b'C', type(value), encoder.mapping(value.__getstate__()))
