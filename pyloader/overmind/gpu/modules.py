"""``module.to('cuda')`` and ``module.cuda()`` move the plain weights through page-locked memory; torch moves the rest.

In place from the first hit on with OVERMIND_PIN, and until ``unpatch_all``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from overmind.logs import warn_once
from overmind.settings import Pin, current

Copy = Callable[[Any, Any, Sequence[tuple[Any, Any]]], None]  # torch, device, pairs
_Put = Callable[[Any], None]
_Target = tuple[Any, Any]  # a GPU and the dtype of floating-point tensors, as torch reads them from the arguments

_lock = threading.Lock()
_originals: dict[str, tuple[Any, Any]] = {}  # name: what torch has, and what stands in its place


def install(torch: Any) -> None:
    """Once; nothing where torch was built without CUDA. Does not initialise CUDA."""
    with _lock:
        if _originals or not torch.backends.cuda.is_built():
            return
        for name, target in (('to', _target_of_to), ('cuda', _target_of_cuda)):
            original = getattr(torch.nn.Module, name)
            _originals[name] = original, _wrapped(torch, original, target)
            setattr(torch.nn.Module, name, _originals[name][1])


def uninstall() -> None:
    with _lock:
        if not _originals:
            return
        import torch

        for name, (original, ours) in _originals.items():
            if getattr(torch.nn.Module, name) is ours:
                setattr(torch.nn.Module, name, original)
        _originals.clear()


def _wrapped(torch: Any, original: Any, target: Callable[..., _Target | None]) -> Any:
    @functools.wraps(original)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        pin = current().pin
        if pin != 'off' and _originals:
            try:
                found = target(torch, *args, **kwargs)
            except Exception:
                found = None  # wrong arguments, of which torch says what is wrong
            # Asked for nothing else: in some versions of torch the question alone makes a later fork useless.
            if found is not None and torch.cuda.is_available():
                try:
                    _move(torch, pin, self, *found)
                except Exception as e:
                    warn_once('pin:move', f'OVERMIND_PIN={pin}: {type(e).__name__}: {e}; torch moves the module')
        return original(self, *args, **kwargs)

    return moved


def _target_of_to(torch: Any, *args: Any, **kwargs: Any) -> _Target | None:
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return (device, dtype) if device is not None and device.type == 'cuda' and memory_format is None else None


def _target_of_cuda(torch: Any, device: Any = None) -> _Target | None:
    found = torch.device('cuda' if device is None else device)
    return (found, None) if found.type == 'cuda' else None


def _move(torch: Any, pin: Pin, module: Any, device: Any, dtype: Any) -> None:
    from overmind.gpu.copies import copy_all

    if device.index is None:
        device = torch.device('cuda', torch.cuda.current_device())
    stage(torch, module, device, dtype, lambda torch, device, pairs: copy_all(torch, pin, device, pairs))


def stage(torch: Any, module: Any, device: Any, dtype: Any, copy: Copy) -> None:
    """Move what is the same on the device byte by byte, as torch would. dtype: of floating-point tensors afterwards."""
    from overmind.gpu.copies import as_bytes

    if torch.__future__.get_overwrite_module_params_on_conversion() or torch.is_inference_mode_enabled():
        return
    if getattr(torch.__future__, 'get_swap_module_params_on_conversion', bool)():
        return
    pairs, put = [], []
    with torch.no_grad():
        for tensor, place in _weights(torch, module):
            if not _movable(torch, tensor, dtype):
                continue
            source = tensor.detach()
            target = torch.empty_like(source, device=device)
            size = source.element_size()
            nbytes = source.numel() * size
            pairs.append(
                (
                    as_bytes(torch, target.untyped_storage(), 0, nbytes),
                    as_bytes(torch, source.untyped_storage(), source.storage_offset() * size, nbytes),
                )
            )
            put.append((place, target))
        copy(torch, device, pairs)
        for place, target in put:
            place(target)


def _weights(torch: Any, module: Any, seen: set[int] | None = None) -> Iterator[tuple[Any, _Put]]:
    """Parameters once, and buffers as often as they are registered, as torch does. A module that says itself how it is
    converted is left alone, with all in it."""
    seen = set() if seen is None else seen
    if id(module) in seen or type(module)._apply is not torch.nn.Module._apply or '_apply' in vars(module):
        return
    seen.add(id(module))
    for parameter in module._parameters.values():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter, functools.partial(setattr, parameter, 'data')
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield buffer, functools.partial(module._buffers.__setitem__, name)
    for child in module._modules.values():
        if child is not None:
            yield from _weights(torch, child, seen)


def _movable(torch: Any, tensor: Any, dtype: Any) -> bool:
    converted = dtype is not None and dtype != tensor.dtype and (tensor.is_floating_point() or tensor.is_complex())
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == 'cpu'
        and tensor.layout is torch.strided
        and not (converted or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not tensor.is_inference()
        and tensor.is_leaf
        and tensor.grad is None
        and tensor.numel() > 0
        and (tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)))
    )
