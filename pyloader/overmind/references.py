"""Objects that came from the cache and are passed to another load.

They enter the key by a token, and in the pickled result they, and what hangs below them, are replaced by a reference
(argument, path); a later load puts the caller's own object there.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import marshal
import pickle
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from overmind.collector import collector_paused
from overmind.errors import Bypass, Unkeyable
from overmind.key.origin import is_first_party
from overmind.key.signatures import signature_of
from overmind.structure.later import settle

Path = tuple[str, ...]
# Of such there is one in the whole process, whoever returned it.
_NAMED = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, enum.Enum, re.Pattern,
)  # fmt: skip
# What marshal writes as it is.
_PLAIN: tuple[Any, ...] = (bool, str, bytes, int, float, complex)


class Registry:
    """Which objects of this process came from which entry. Holds them weakly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}

    def add(self, obj: Any, origin: str) -> None:
        """Remember obj and the components below it as results of an entry; an argument among them keeps its own."""
        for path, part in _components(obj):
            key = id(part)
            if isinstance(part, _NAMED) or self._of(part) is not None:
                continue

            def forget(_: Any, key: int = key) -> None:
                self._known.pop(key, None)

            try:
                ref = weakref.ref(part, forget)
            except TypeError:
                continue
            with self._lock:
                self._known[key] = (ref, f'{origin}{path}')

    def token(self, obj: Any) -> str | None:
        """What stands for obj in a key, or None if it did not come from the cache.

        A loader sees the configuration of what it is given (a pipeline takes its scale factor from the VAE's) and what
        kind of tensors it has (a new head gets their dtype), so these are part of the token; weights and attributes
        are not, since the result only refers to them.
        """
        known = self._of(obj)
        if known is not None:
            return f'{known[1]}:{_configuration(obj)}{_kinds(obj)}'
        return self._container(obj)

    def knows(self, obj: Any) -> bool:
        """Whether obj has a token, without the walk over its tensors that making one takes."""
        if self._of(obj) is not None:
            return True
        children = _children(obj)
        return bool(children) and all(self.knows(child) for _, child in children)

    def _of(self, obj: Any) -> tuple[weakref.ref[Any], str] | None:
        known = self._known.get(id(obj))
        return known if known is not None and known[0]() is obj else None

    def _container(self, obj: Any) -> str | None:
        tokens = [(name, self.token(child)) for name, child in _children(obj)]
        if not tokens:
            return None
        if any(t is None for _, t in tokens):
            return None
        return f'{type(obj).__module__}.{type(obj).__qualname__}({tokens})'


def _children(obj: Any) -> list[tuple[str, Any]]:
    """The children of a module without tensors of its own, such as MultiControlNetModel; nothing for others."""
    torch = sys.modules.get('torch')
    if torch is None or not isinstance(obj, torch.nn.Module) or obj._parameters or obj._buffers:
        return []
    return list(obj.named_children())


def _components(obj: Any) -> Iterator[tuple[str, Any]]:
    """The object itself and the parts of it that people pass to other loaders."""
    yield '', obj
    if isinstance(obj, dict):
        parts: Any = obj.items()
    elif isinstance(obj, (list, tuple)):
        parts = enumerate(obj)
    elif hasattr(type(obj), 'components') and hasattr(type(obj), 'register_modules'):
        parts = obj.components.items()
    elif hasattr(obj, 'tokenizer') or hasattr(obj, 'image_processor') or hasattr(obj, 'feature_extractor'):
        names = ('model', 'tokenizer', 'image_processor', 'feature_extractor', 'processor')
        parts = [(n, getattr(obj, n, None)) for n in names]
    else:
        return
    for name, part in parts:
        if part is not None and not isinstance(part, (str, bytes, int, float)):
            yield f'/{name}', part


def _configuration(obj: Any) -> str:
    config = getattr(obj, 'config', None)
    if config is None:
        return ''
    try:
        facts = config.to_dict() if hasattr(config, 'to_dict') else dict(config)
        return hashlib.sha256(repr(sorted((str(k), repr(v)) for k, v in facts.items())).encode()).hexdigest()[:16]
    except Exception as e:
        raise Bypass(f'the configuration of {type(obj).__qualname__} cannot be read: {type(e).__name__}: {e}') from e


def _kinds(obj: Any) -> str:
    """The dtypes, devices and modes that occur in a module, or in those of a pipeline."""
    torch = sys.modules.get('torch')
    if torch is None:
        return ''
    from overmind_cext import kinds as kinds_of

    modes, kinds = kinds_of([part for _, part in _components(obj) if isinstance(part, torch.nn.Module)])
    found = {(mode,) for mode in modes} | {(dtype, device.type, grad) for dtype, device, grad in kinds}
    return hashlib.sha256(repr(sorted(map(repr, found))).encode()).hexdigest()[:8] if found else ''


def arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by parameter name, however the call was written."""
    while type(fn) is functools.partial:
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    signature, skip = signature_of(fn)
    try:
        bound = signature.bind(*(None,) * skip, *args, **kwargs).arguments if signature else None
    except TypeError:
        bound = None
    if signature is None or bound is None:
        return {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    out: dict[str, Any] = {}
    for i, (name, parameter) in enumerate(signature.parameters.items()):
        if name not in bound:
            continue
        value = bound[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            out.update(value)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            # f(*args), where the first one is what it is bound to
            out.update((f'{name}[{i}]', v) for i, v in enumerate(value[skip - min(i, skip) :]))
        elif i >= skip:
            out[name] = value
    return out


class References:
    """The arguments of one call that came from the cache, by their place in it."""

    def __init__(self, registry: Registry, named: dict[str, Any]) -> None:
        self._registry = registry
        self.objects: dict[Path, Any] = {}
        for name, value in named.items():
            self._find(value, (name,), 0)

    def _find(self, value: Any, at: Path, depth: int) -> None:
        if value is None or isinstance(value, (str, bytes, int, float)) or depth > 8:
            return
        if isinstance(value, dict):
            for k, v in value.items():
                self._find(v, (*at, repr(k)), depth + 1)
        elif isinstance(value, (list, tuple)):
            for i, v in enumerate(value):
                self._find(v, (*at, str(i)), depth + 1)
        elif self._registry.knows(value):
            self.objects[at] = value
        else:
            for name, v in _attributes(value).items():
                self._find(v, (*at, f'.{name}'), depth + 1)

    def require(self, met: Iterable[Any]) -> None:
        """Raises Unkeyable for an object of the cache, part of the key, that no reference in a result could mean: a
        result that holds it would hold a copy, without the caller's changes."""
        ours = set(map(id, self.objects.values()))
        for obj in met:
            if id(obj) not in ours:
                raise Unkeyable(
                    f'{_a(obj)} from the cache is reached otherwise than by arguments, their lists, dicts and '
                    'attributes; pass it as an argument'
                )

    def targets(self) -> tuple[dict[int, tuple[Path, str]], dict[int, tuple[Path, str]]]:
        """Everything that a result may refer to: by id of the object, and by address of the storage."""
        torch = sys.modules.get('torch')
        objects: dict[int, tuple[Path, str]] = {}
        storages: dict[int, tuple[Path, str]] = {}
        for at, obj in self.objects.items():
            objects[id(obj)] = (at, '')
            if torch is None or not isinstance(obj, torch.nn.Module):
                continue
            for name, module in obj.named_modules():
                objects.setdefault(id(module), (at, f'm:{name}'))
                for kind, tensors in (('p', module._parameters), ('b', module._buffers)):
                    for key, tensor in tensors.items():
                        if tensor is not None:
                            path = f'{kind}:{name}.{key}' if name else f'{kind}:{key}'
                            objects.setdefault(id(tensor), (at, path))
                            address = _address(tensor)
                            if address:
                                storages.setdefault(address, (at, path))
        return objects, storages

    def resolve(self, at: Path, path: str) -> Any:
        """The object that a reference means, in this call. Raises KeyError or AttributeError if it is not there."""
        obj = self.objects[at]
        kind, _, name = path.partition(':')
        if not kind:
            return obj
        if kind == 'm':
            return obj.get_submodule(name)
        return obj.get_parameter(name) if kind == 'p' else obj.get_buffer(name)

    def state(self) -> dict[Path, bytes]:
        """What a loader could change in the arguments, as bytes: compare before and after.

        Thousands of small objects, kept over the load, would have the garbage collector go over the whole process.
        """
        with collector_paused():
            return {at: hashlib.sha256(_packed(_state(obj))).digest() for at, obj in self.objects.items()}


def _attributes(obj: Any) -> dict[str, Any]:
    """Those of a program's plain object, as a key has them; nothing for others."""
    kind = type(obj)
    found = dict(getattr(obj, '__dict__', {}))
    if dataclasses.is_dataclass(kind):
        return found | {f.name: getattr(obj, f.name, None) for f in dataclasses.fields(kind)}
    plain = kind is types.SimpleNamespace or kind.__name__ == 'Namespace' or is_first_party(kind.__module__)
    return found if plain and not isinstance(obj, _NAMED) else {}


def _a(obj: Any) -> str:
    name = type(obj).__qualname__
    return f'{"an" if name[0] in "AEIOUaeiou" else "a"} {name}'


def _address(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def _state(obj: Any) -> Any:
    torch = sys.modules.get('torch')
    if torch is not None and isinstance(obj, torch.nn.Module):
        tree = {}
        for name, module in obj.named_modules():
            own = {k: _value(v) for k, v in vars(module).items() if k not in ('_parameters', '_buffers', '_modules')}
            tensors = {
                k: (id(t), getattr(t, '_version', None), _address(t), t.requires_grad)
                for d in (module._parameters, module._buffers)
                for k, t in d.items()
                if t is not None
            }
            tree[name] = (id(module), id(type(module)), own, tensors)
        return tree
    try:
        settle(obj)
        return hashlib.sha256(pickle.dumps(obj)).hexdigest()
    except Exception:
        return _value(vars(obj)) if hasattr(obj, '__dict__') else id(obj)


def _packed(state: Any) -> bytes:
    """Equal bytes for equal states: the old format does not depend on who else refers to a part."""
    return marshal.dumps(state, 2)


def _value(v: Any, depth: int = 0) -> Any:
    """A comparable picture of an attribute: by content where that is cheap and sure, else by identity."""
    if v is None or type(v) in _PLAIN:
        return v
    for plain in _PLAIN:
        if isinstance(v, plain):
            return plain(v)
    if depth < 6:
        if isinstance(v, dict):
            return [(str(k), _value(x, depth + 1)) for k, x in v.items()]
        if isinstance(v, (list, tuple)):
            return [_value(x, depth + 1) for x in v]
        if isinstance(v, (set, frozenset)):
            return sorted(map(str, v))
        if hasattr(v, 'to_dict') and not isinstance(v, type):
            return (id(v), _value(vars(v), depth + 1))
    version = getattr(v, '_version', None)  # of tensors
    return (id(v), version if type(version) is int else None)
