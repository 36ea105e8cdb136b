"""Objects to structure.pkl: cloudpickle's C pickler, persistent ids for tensors, reducers for what it gets wrong.

cloudpickle stores by value only what cannot be imported. What is neither is refused: a result that would come back
nearly right must not be cached.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import io
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import torch

from overmind.errors import Unpicklable
from overmind.key.origin import MAIN, common_name
from overmind.references import Path
from overmind.structure import arrays, hashes, later, rebuild, script, sentinels, vocabularies
from overmind.structure.attributes import SETTER, Attributes, Setter
from overmind.structure.constants import constants
from overmind.structure.modules import file_of
from overmind.structure.table import Table, bare, plain
from overmind.structure.where import place

_new = copyreg.__newobj__  # type: ignore[attr-defined]
_LOCKS = {type(threading.Lock()): 'lock', type(threading.RLock()): 'rlock', threading.local: 'local'}
_OPEN = (io.IOBase, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_RECOMPUTING = frozenset({
    ('torch.nn.utils.weight_norm', 'WeightNorm'),
    ('torch.nn.utils.spectral_norm', 'SpectralNorm'),
})  # fmt: skip
_spawned = threading.RLock()

Targets = tuple[dict[int, tuple[Path, str]], dict[int, tuple[Path, str]]]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Fills a :class:`Table`; ``modules`` is then what a fresh process needs to import from files. ``last`` is the
    object that is being written: where that fails, the culprit."""

    def __init__(
        self,
        out: io.BytesIO,
        table: Table,
        targets: Targets,
        top: Any,
        shared: dict[int, arrays.Place] | None = None,
    ) -> None:
        super().__init__(out, protocol=5)
        self.modules: dict[str, str] = {}
        self.last: Any = None
        self._table, self._top = table, top
        self._objects: dict[int, Any] = dict(targets[0])
        self._addresses = targets[1]
        self._definitions: dict[int, Definition] = {}
        self._seen_modules: set[str] = set()
        self._tokenizers: dict[int, later.Pending] = {}
        self.arrays: list[Any] = []
        self._shared = shared or {}
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._attributes = Attributes()

    def persistent_id(self, obj: Any) -> Any:
        self.last = obj
        found = self._objects.get(id(obj))
        if found is not None:
            return found
        t = type(obj)
        if t in self._plain:
            self._refuse_foreign(obj)
            return 2 * self._table.tensor(obj) if plain(obj) else None
        if t is _Row:
            return 2 * self._table.tensor(obj.tensor)
        if t is torch.UntypedStorage:
            return self._storage_id(obj)
        return None

    def _storage_id(self, s: torch.UntypedStorage) -> int:
        if s.device.type != 'meta' and s.nbytes() and s.data_ptr() in self._addresses:
            raise Unpicklable('the result holds a view of the memory of an argument')
        return 2 * self._table.storage(s) + 1

    def _refuse_foreign(self, t: torch.Tensor) -> None:
        """A tensor over an argument's storage would come back as a copy, cut off from the caller's changes."""
        if not self._addresses or t.layout is not torch.strided or t.device.type == 'meta':
            return
        s = t.untyped_storage()
        if s.nbytes() and s.data_ptr() in self._addresses:
            raise Unpicklable('the result holds a view of the memory of an argument')

    def _note(self, name: str | None) -> None:
        if not isinstance(name, str) or name in self._seen_modules:
            return
        self._seen_modules.add(name)
        path = file_of(name)
        if path is not None:
            self.modules[name] = path

    def reducer_override(self, obj: Any) -> Any:
        t = type(obj)
        if t is collections.OrderedDict:  # a module has a dozen of them
            # An empty one made without its __init__, which costs as much again as all the rest.
            return NotImplemented if vars(obj) else (_new, (t,), None, None, iter(obj.items()))
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj, t)
        if t is Setter:
            return rebuild.dict_setter, ()
        if t is Attributes:
            return rebuild.module_filler, (obj.names, obj.kinds)
        if arrays.is_array(t):
            return self._array(obj)
        if arrays.is_mapped(t):
            raise Unpicklable(arrays.MAPPED)
        reduce = _BY_TYPE.get(t)
        if reduce is not None:
            return reduce(obj)
        if isinstance(obj, (type, types.FunctionType)):
            return self._named(obj)
        if isinstance(obj, torch.jit.ScriptModule):
            return self._script_module(obj, t)
        if isinstance(obj, torch.nn.Module):
            return self._module(obj, t)
        if isinstance(obj, torch.optim.Optimizer) and t.__getstate__ is torch.optim.Optimizer.__getstate__:
            # Its own state has neither hooks nor attributes, such as the step that a scheduler has wrapped.
            return rebuild.optimizer, (t,), dict(vars(obj)), None, None, rebuild.set_dict
        if isinstance(obj, _OPEN) and not isinstance(obj, (io.BytesIO, io.StringIO)):
            raise Unpicklable(f'{_a(obj)} cannot be kept: it is open in this process')
        folder = _offload_folder(obj, t)
        if folder is not None:
            raise Unpicklable(f'weights that the loader wrote to {folder}, where any other load may replace them')
        if t.__name__ == 'Tokenizer' and t.__module__ == 'tokenizers':
            return later.now, (self._pending(obj),)
        if t is later.Pending:
            return later.Pending, (obj.stored(),)
        if t is vocabularies.Group:
            return vocabularies.Group, (obj.stored(), obj.packages)
        if t is vocabularies.Part and not obj.group.used:
            return vocabularies.Part, (obj.group, obj.name)
        if sentinels.may_be(obj, t):
            found = sentinels.name_of(obj, t, self._seen_modules)
            if found is not None:
                self._note(found[0])
                return rebuild.sentinel, (common_name(found[0]), found[1], t)
        if hasattr(t, 'register_modules'):
            self._objects.update(constants(t))
        if later.postponable(t) and vars(obj).get('_tokenizer') is not None:
            return later.reduced(obj, self._pending(obj._tokenizer))
        if vocabularies.is_tokenizer(t):
            return vocabularies.reduced(obj)
        if hashes.has_one(t) and (found := hashes.reduced(obj)) is not None:
            return found
        if t.__name__ == 'ExportedProgram' and t.__module__.startswith('torch.export'):
            data = io.BytesIO()
            torch.export.save(obj, data)
            return rebuild.exported_program, (data.getvalue(),)
        if isinstance(obj, torch.storage.TypedStorage):
            return rebuild.typed_storage, (obj._untyped_storage, obj.dtype)
        return super().reducer_override(obj)

    def _pending(self, tokenizer: Any) -> later.Pending:
        """The same for all who refer to a tokenizer of the Rust library."""
        found = self._tokenizers.get(id(tokenizer))
        if found is None:
            found = self._tokenizers[id(tokenizer)] = later.Pending.of(tokenizer)
        return found

    def _array(self, obj: Any) -> Any:
        if arrays.has_mapped(obj):
            raise Unpicklable(arrays.MAPPED)
        self.arrays.append(obj)
        found = self._shared.get(id(obj))
        if found is None:
            return NotImplemented
        return rebuild.array, (*found, obj.dtype, obj.shape, obj.strides, obj.flags.writeable)

    # ---- classes and functions

    def _named(self, obj: Any) -> Any:
        module = getattr(obj, '__module__', None)
        self._note(module)
        if module in MAIN and found_in_main(obj):
            # One instance for each object: a class refers to itself while it is being written.
            definition = self._definitions.setdefault(id(obj), Definition(self, obj))
            return rebuild.from_main, (obj.__qualname__, definition)
        return self.definition(obj)

    def definition(self, obj: Any) -> Any:
        """What cloudpickle makes of a class or function by value."""
        return apart(obj, super().reducer_override(obj))

    # ---- modules

    def _module(self, obj: Any, t: type) -> Any:
        self._note(t.__module__)
        if t.__module__.startswith('torch.export') or '_guards_fn' in obj._modules:
            raise Unpicklable('the module of an exported program')
        if t.__name__ == 'OptimizedModule' or obj.__dict__.get('_compiled_call_impl') is not None:
            raise Unpicklable('a module that torch.compile has wrapped; cache the module and compile it after the load')
        if getattr(t, '__setstate__', None) is torch.nn.Module.__setstate__:
            # Not by copyreg, which would leave a mark on the class.
            slots = [c for c in t.__mro__ if c.__dict__.get('__slots__')]
            for name, slot in ((n, v) for c in slots for n, v in vars(c).items()):
                if type(slot) is types.MemberDescriptorType and hasattr(obj, name):
                    raise Unpicklable(f'a module that keeps {name} in __slots__, of which torch restores nothing')
        if 'parametrizations' in obj._modules and t.__name__.startswith('Parametrized'):
            return rebuild.bare, (t.__bases__[0],), dict(obj.__dict__), None, None, rebuild.set_parametrized
        hooks = {_weight(h): h for h in obj.__dict__.get('_forward_pre_hooks', {}).values() if _recomputes(h)}
        stale = {n for n in hooks if isinstance(w := obj.__dict__.get(n), torch.Tensor) and not w.is_leaf}
        if stale:
            state = {k: v for k, v in obj.__dict__.items() if k not in stale}
            again = [hooks[n] for n in sorted(stale)]
            return rebuild.bare, (t,), (state, again), None, None, rebuild.set_recomputed
        if any(c.__name__ == 'PreTrainedModel' and c.__module__ == 'transformers.modeling_utils' for c in t.__mro__):
            parts = obj.__reduce_ex__(4)
            return (*parts[:3], None, None, rebuild.set_pretrained)
        return self._with_dict(obj, t) or super().reducer_override(obj)

    def _with_dict(self, obj: Any, t: Any) -> Any:
        """A module that nothing is to be done for but to give it its attributes; None for others."""
        if t.__setstate__ is not torch.nn.Module.__setstate__ or t.__reduce_ex__ is not object.__reduce_ex__:
            return None
        alone = self._attributes.alone(obj)
        parts = obj.__reduce_ex__(4)
        if parts[0] is not _new or type(parts[2]) is not dict or not self._attributes.complete(parts[2]):
            return None
        own = self._attributes.beyond_empty(obj, parts[2]) if alone else None
        if own is None:
            return (*parts[:3], None, None, SETTER)
        return (*parts[:2], own, None, None, self._attributes)

    def _script_module(self, obj: Any, t: type) -> Any:
        if t is not torch.jit.RecursiveScriptModule or obj is not self._top:
            raise Unpicklable(f'{t.__qualname__} inside another object would come back as another class')
        return script.reduce(obj)

    # ---- tensors that are not plain

    def _tensor(self, obj: Any, t: type) -> Any:
        self._note(t.__module__)
        if obj.layout is not torch.strided or obj.device.type == 'meta' or obj.is_quantized or obj.is_nested:
            return NotImplemented
        if obj.requires_grad and not obj.is_leaf:
            raise Unpicklable('a tensor that is the result of a computation with gradients')
        if obj.is_inference():
            raise Unpicklable('a tensor made in inference mode')
        if not _owned(t):
            return NotImplemented
        state = dict(obj.__dict__)
        if t in self._plain and bare(obj):
            return rebuild.attributed, (_Row(obj), state)
        grad = obj.grad if obj.is_leaf else None
        if obj._backward_hooks or getattr(obj, '_post_accumulate_grad_hooks', None):
            raise Unpicklable('a tensor with gradient hooks')
        facts = (obj.dtype, obj.storage_offset(), tuple(obj.size()), obj.stride(), obj.requires_grad)
        flags = torch._utils.get_tensor_metadata(obj)
        return rebuild.tensor, (t, obj.untyped_storage(), *facts, flags, grad, state)


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """Stands for a tensor without its attributes: its row of the table."""

    tensor: torch.Tensor


class Definition:
    """Stands for a class or function that is to be stored by value; pickled once, by cloudpickle's own reducer."""

    def __init__(self, pickler: Any, obj: Any) -> None:
        self._pickler, self._obj = pickler, obj

    def __reduce__(self) -> Any:
        return self._pickler.definition(self._obj)


def _owned(t: type) -> bool:
    """Tensor, Parameter and subclasses of Parameter that add only attributes: stock pickling loses the class."""
    if t is torch.Tensor or t is torch.nn.Parameter:
        return True
    stock = (torch.nn.Parameter.__reduce_ex__, torch.Tensor.__reduce_ex__)
    return (
        issubclass(t, torch.nn.Parameter)
        and t.__reduce_ex__ in stock
        and getattr(t, '__torch_dispatch__', None) is torch.nn.Parameter.__torch_dispatch__
        and not hasattr(t, '__tensor_flatten__')
    )


def apart(obj: Any, parts: Any) -> Any:
    """cloudpickle's reduction of obj; a class by value keeps its full name and is a class of its own.

    cloudpickle marks such a class, and where the mark is known, in the process that wrote it, it puts the methods of
    the copy into the original. The mark is the last but one of the constructor's arguments.
    """
    if not isinstance(obj, type) or not isinstance(parts, tuple) or len(parts) != 6:
        return parts
    make, (*arguments, _, extra), (attributes, slots), *more = parts
    names = {'__qualname__': obj.__qualname__, '__module__': common_name(obj.__module__)}
    return make, (*arguments, None, extra), ({**attributes, **names}, slots), *more


@contextlib.contextmanager
def main_by_value() -> Iterator[None]:
    """cloudpickle takes the script of a process that multiprocessing spawned for a module that others can import."""
    module = sys.modules.get('__mp_main__')
    with _spawned:
        ours = module is not None and '__mp_main__' not in cloudpickle.list_registry_pickle_by_value()
        if ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if ours:
                cloudpickle.unregister_pickle_by_value(module)


def found_in_main(obj: Any) -> bool:
    found: Any = sys.modules.get('__main__')
    for part in obj.__qualname__.split('.'):
        found = getattr(found, part, None)
    return found is obj


def _weight(hook: Any) -> str:
    return str(getattr(hook, '_tensor_name', None) or hook.name)


def _recomputes(hook: Any) -> bool:
    t = type(hook)
    return (t.__module__, t.__name__) in _RECOMPUTING or any(
        c.__name__ == 'BasePruningMethod' and c.__module__ == 'torch.nn.utils.prune' for c in t.__mro__
    )


def _offload_folder(obj: Any, t: type) -> str | None:
    """Where accelerate or diffusers keep weights outside of the object; None for what has none in such a folder.

    accelerate may also point to the checkpoint, whose files are inputs of the load like any other.
    """
    if t.__name__ == 'OffloadedWeightsLoader' and t.__module__ == 'accelerate.utils.offload' and obj.save_folder:
        folder = os.path.abspath(obj.save_folder)
        files = [facts.get('safetensors_file') for facts in obj.index.values()]
        return folder if any(not f or os.path.dirname(os.path.abspath(f)) == folder for f in files) else None
    if t.__name__ == 'ModuleGroup' and t.__module__ == 'diffusers.hooks.group_offloading':
        path = getattr(obj, 'offload_to_disk_path', None)
        return None if path is None else os.path.abspath(path)
    return None


def _weak_reference(obj: Any) -> Any:
    target = obj()
    return (weakref.ref, (target,)) if target is not None else (rebuild.dead_reference, ())


def _script_function(obj: Any) -> Any:
    raise Unpicklable('a compiled TorchScript function')


_BY_TYPE: dict[type, Callable[[Any], Any]] = {
    **{t: (lambda _, kind=kind: (rebuild.lock, (kind,))) for t, kind in _LOCKS.items()},  # type: ignore[misc]
    weakref.ref: _weak_reference,
    weakref.WeakKeyDictionary: lambda d: (rebuild.weak_dict, (type(d), list(d.items()))),
    weakref.WeakValueDictionary: lambda d: (rebuild.weak_dict, (type(d), list(d.items()))),
    torch.Generator: lambda g: (rebuild.generator, (str(g.device), g.get_state())),
    torch.jit.ScriptFunction: _script_function,
}


def _a(obj: Any) -> str:
    kind = type(obj)
    name = kind.__qualname__ if kind.__module__ == 'builtins' else f'{kind.__module__}.{kind.__qualname__}'
    return f'{"an" if name[0] in "aeiouAEIOU" else "a"} {name}'


def dumps(obj: Any, table: Table, targets: Targets) -> tuple[bytes, dict[str, str]]:
    """The bytes of structure.pkl and the modules that it needs. Raises :class:`Unpicklable`."""
    data, pickler = _dump(obj, table, targets)
    shared = arrays.shared(pickler.arrays, table.storages)
    if shared:
        table.reset()
        data, pickler = _dump(obj, table, targets, shared)
    return data, pickler.modules


def _dump(
    obj: Any, table: Table, targets: Targets, shared: dict[int, arrays.Place] | None = None
) -> tuple[bytes, Pickler]:
    out = io.BytesIO()
    pickler = Pickler(out, table, targets, obj, shared)
    try:
        with main_by_value():
            pickler.dump(obj)
    except Unpicklable as e:
        at = place(obj, pickler.last)
        raise Unpicklable(f'{at}: {e}' if at else str(e)) from e
    except Exception as e:
        if isinstance(e, RecursionError) or isinstance(e.__cause__, RecursionError):
            raise Unpicklable(f'the result, {_a(obj)}, is nested too deeply') from e
        at = place(obj, pickler.last)
        what = f'{at}, {_a(pickler.last)},' if at else _a(pickler.last)
        raise Unpicklable(f'{what} cannot be kept: {type(e).__name__}: {e}') from e
    return out.getvalue(), pickler
