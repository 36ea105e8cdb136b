"""What a structure.pkl calls to rebuild what stock pickling gets wrong. The names are part of the format."""

from __future__ import annotations

import importlib
import io
import sys
import threading
import weakref
from typing import Any

import torch


def tensor(
    cls: type,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    flags: dict[str, bool],
    grad: Any,
    state: dict[str, Any],
) -> Any:
    """A strided tensor with everything that a plain one lacks: class, attributes, gradient, conj and neg bits."""
    t: Any = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)
    if flags:
        torch._utils.set_tensor_metadata(t, flags)
    if cls is not torch.Tensor:
        t = torch.Tensor._make_subclass(cls, t, requires_grad)
    elif requires_grad:
        t.requires_grad_(True)
    if grad is not None:
        t.grad = grad
    if state:
        t.__dict__.update(state)
    return t


def attributed(t: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    """A tensor of the table with attributes: transformers leaves a mark on each Parameter."""
    t.__dict__.update(state)
    return t


def dict_setter() -> Any:
    """What sets the ``__dict__`` of a module, called with both: no step of the interpreter for each. torch's own way,
    __setstate__, looks for what modules of older versions lack, and takes as long as all the rest of making one."""
    return vars(torch.nn.Module)['__dict__'].__set__


def module_filler(names: dict[str, Any], kinds: dict[str, type]) -> Any:
    """The same for a module of which only what is not empty was written."""
    import overmind_cext

    return overmind_cext.module_filler(names, kinds)


def array(
    storage: torch.UntypedStorage,
    offset: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> Any:
    """A numpy array over memory that a tensor or another array has too."""
    import numpy

    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    a: Any = numpy.ndarray(shape, dtype, buffer=memory, offset=offset, strides=strides)
    a.flags.writeable = writeable
    return a


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def script_module(data: bytes) -> Any:
    return torch.jit.load(io.BytesIO(data))


def exported_program(data: bytes) -> Any:
    return torch.export.load(io.BytesIO(data))


def generator(device: str, state: torch.Tensor) -> torch.Generator:
    g = torch.Generator(device)
    g.set_state(state)
    return g


def bare(cls: Any) -> Any:
    return cls.__new__(cls)


def optimizer(cls: Any) -> Any:
    """A bare one. Its class runs hooks from the first instance on that a process makes."""
    made = cls.__new__(cls)
    made._patch_step_function()
    return made


def set_dict(obj: Any, state: dict[str, Any]) -> None:
    vars(obj).clear()
    vars(obj).update(state)


def set_parametrized(module: Any, state: dict[str, Any]) -> None:
    """A module with parametrizations has a class of its own, made at run time from the base class."""
    from torch.nn.utils import parametrize

    module.__dict__.update(state)
    parametrize._inject_new_class(module)
    for name in module._modules['parametrizations']:
        parametrize._inject_property(module, name)


def set_recomputed(module: Any, state: tuple[Any, list[Any]]) -> None:
    """Pruning and the older weight and spectral norm keep a computed, non-leaf weight; compute it again."""
    attributes, hooks = state
    module.__setstate__(attributes)
    for hook in hooks:
        recompute(hook, module)


def recompute(hook: Any, module: Any) -> None:
    """What the hook does before a forward, without a step of the power iteration."""
    if hasattr(hook, 'compute_weight'):
        name = type(hook).__name__
        weight = (
            hook.compute_weight(module, do_power_iteration=False)
            if name == 'SpectralNorm'
            else hook.compute_weight(module)
        )
        setattr(module, hook.name, weight)
    else:
        setattr(module, hook._tensor_name, hook.apply_mask(module))


def set_pretrained(module: Any, state: Any) -> None:
    """PreTrainedModel.__init__ enters the class in a process-wide registry; without it hidden states are None."""
    module.__setstate__(state)
    registry = getattr(sys.modules['transformers.modeling_utils'], '_CAN_RECORD_REGISTRY', None)
    if registry is not None:
        # In version 4 it is a dict by the name of the class.
        key = str(type(module)) if type(registry) is dict else module
        registry[key] = module._can_record_outputs


def weak_dict(cls: type, items: list[tuple[Any, Any]]) -> Any:
    d = cls()
    d.update(items)
    return d


_LOCKS = {'lock': threading.Lock, 'rlock': threading.RLock, 'local': threading.local}


def lock(kind: str) -> Any:
    return _LOCKS[kind]()


class _Gone:
    pass


def dead_reference() -> weakref.ref[Any]:
    return weakref.ref(_Gone())


def sentinel(module: str, name: str, cls: Any) -> Any:
    """The object of that name, which code compares by identity; in a script that has none, one of its own."""
    found = getattr(sys.modules.get(module) or importlib.import_module(module), name, None)
    return found if type(found) is cls else object.__new__(cls)


def from_main(name: str, copy: Any) -> Any:
    """A class or function of ``__main__``: the running script's own where it has one of that name, else the copy."""
    found: Any = sys.modules['__main__']
    try:
        for part in name.split('.'):
            found = getattr(found, part)
    except AttributeError:
        return copy
    return found
