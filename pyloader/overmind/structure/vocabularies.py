"""The vocabulary of a transformers tokenizer written in Python, unpickled when it is first used.

Its dicts have 50,000 entries each, and ``fix_text`` of CLIP's is a function of ftfy, whose import takes longer than the
rest of a hit. Until somebody asks for one of them, a :class:`Part` stands in the object's ``__dict__``, and a data
descriptor on the library's class, which comes before that, gives everybody who asks the real value.
"""

from __future__ import annotations

import collections
import importlib.util
import itertools
import pickle
import sys
import types
from typing import Any

from overmind.structure.later import Kept, Later, Waiting, install, lock, restored_by_dict
from overmind.structure.modules import file_of

LARGE = 1024  # entries of a dict from which it can wait

_BASES = ('PreTrainedTokenizerBase', 'PreTrainedTokenizer', 'PythonBackend')  # of transformers 4 and 5
_LIBRARY = 'transformers.'
_ATOMS = {str, int, float, bool, bytes, type(None)}
_FREE = Later('')


class Group(Kept):
    """The attributes of one tokenizer that wait; packages are those that their pickle imports."""

    def __init__(self, data: Any, packages: tuple[str, ...]) -> None:
        super().__init__(data)
        self.packages = packages
        self._values: dict[str, Any] | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Group:
        """Raises whatever pickling a value raises."""
        packages = {v.__module__.partition('.')[0] for v in values.values() if type(v) is types.FunctionType}
        return cls(pickle.dumps(values, 5), tuple(sorted(packages)))

    @property
    def used(self) -> bool:
        """Whether somebody has the values, and may have changed them."""
        return self._values is not None

    def get(self, name: str) -> Any:
        """The value of one attribute; all are there from then on."""
        with lock:
            if self._values is None:
                self._values = pickle.loads(self.buffer())
                if isinstance(self.data, bytes):
                    self.data = b''
            return self._values[name]


class Part(Waiting):
    """One attribute of a group."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name

    def get(self) -> Any:
        return self.group.get(self.name)


def parts(obj: Any) -> dict[str, Part]:
    """What stands for the attributes of a tokenizer that can wait; empty where none is worth it.

    A dict can wait that nobody else refers to, and whose keys and values are so simple that nobody cares which of two
    equal ones they are; so can a function of a module that is installed. To be asked before anything else refers to
    them.
    """
    own = vars(obj)
    waiting: dict[str, Part] = {name: v for name, v in own.items() if type(v) is Part}
    if waiting and not any(part.group.used for part in waiting.values()):
        return waiting  # of a tokenizer that came from the cache
    own.update((name, part.get()) for name, part in waiting.items())
    names = [n for n in own if _is_free(type(obj), n) and (_is_alone(own, n) or _is_function(own[n]))]
    if not any(isinstance(own[n], dict) for n in names):
        return {}
    try:
        group = Group.of({n: own[n] for n in names})
    except Exception:  # a function that is not found under its name: all is pickled as it always was
        return {}
    return {n: Part(group, n) for n in names}


def reduced(obj: Any) -> Any:
    """What structure.pkl has of a tokenizer of which something can wait, else NotImplemented."""
    waiting = parts(obj) if restored_by_dict(type(obj)) else {}
    found: Any = obj.__reduce_ex__(4) if waiting else ()
    if len(found) < 3 or not isinstance(found[2], dict):
        return NotImplemented
    waiting = {name: part for name, part in waiting.items() if found[2].get(name, part) is vars(obj)[name]}
    return (*found[:2], {**found[2], **waiting}, None, None, set_state)


def _references(values: dict[str, Any], name: str) -> int:
    return sys.getrefcount(values[name])


_ALONE = _references({'x': {}}, 'x')


def _is_alone(own: dict[str, Any], name: str) -> bool:
    return (
        type(own[name]) in (dict, collections.OrderedDict)
        and len(own[name]) >= LARGE
        and _references(own, name) == _ALONE
        and _simple(own[name])
        and _simple(own[name].values())
    )


def _simple(values: Any) -> bool:
    kinds = set(map(type, values))
    if tuple in kinds:
        kinds.discard(tuple)
        kinds |= set(map(type, itertools.chain.from_iterable(v for v in values if type(v) is tuple)))
    return kinds <= _ATOMS


def _is_function(value: Any) -> bool:
    return (
        type(value) is types.FunctionType
        and value.__module__ in sys.modules
        and '.' not in value.__qualname__
        and value.__module__ != '__main__'
        and file_of(value.__module__) is None
    )


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """The attributes of such a tokenizer; called by structure.pkl. Raises ModuleNotFoundError where a package that
    unpickling will need is not installed any more."""
    cls = type(obj)
    host = _host(cls)
    packages: set[str] = set()
    for name, part in state.items():
        if type(part) is Part:
            if host is None or not _is_free(cls, name):
                state = {**state, name: part.get()}
                continue
            packages.update(part.group.packages)
            install(host, name)
    for package in packages:
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f'No module named {package!r}', name=package)
    vars(obj).update(state)


def _host(cls: type) -> Any:
    """The class of the library that an object is of; None for what is no tokenizer of it. Not one of its base classes:
    what they had would be an attribute of all tokenizers."""
    first = next((c for c in cls.__mro__ if c.__module__.startswith(_LIBRARY)), None)
    if first is None or first.__name__ in _BASES or not any(c.__name__ == _BASES[0] for c in first.__mro__):
        return None
    return first


def is_tokenizer(cls: type) -> bool:
    """Whether it is one of transformers, or derived from one."""
    return _host(cls) is not None


def _is_free(cls: type, name: str) -> bool:
    """Whether no class says what the attribute is."""
    return all(type(vars(c).get(name, _FREE)) is Later for c in cls.__mro__)
