"""Openers written in C++ or Rust, which raise no audit event: wrapped by name while a load is recorded.

Each was tried: torch.load, numpy.load, numpy.memmap, PIL and gguf go through Python's own open and need nothing here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class _Opener(NamedTuple):
    """Where a name lives, which positional argument is the path, and its names as a keyword."""

    module: str
    name: str
    position: int = 0
    keywords: tuple[str, ...] = ()
    held: bool = False  # other modules import the object by this name


_OPENERS = (
    _Opener('safetensors', 'safe_open', 0, ('filename',), held=True),
    _Opener('torch._C', 'PyTorchFileReader'),
    _Opener('torch._C', 'import_ir_module', 1),
    _Opener('torch', 'from_file', 0, ('filename',)),
    _Opener('torch.UntypedStorage', 'from_file', 0, ('filename',)),
    _Opener('tokenizers.Tokenizer', 'from_file', 0, ('path',)),
    *(
        _Opener(f'tokenizers.models.{model}', name, i, (keyword,))
        for model, name, files in (
            ('BPE', 'from_file', ('vocab', 'merges')),
            ('BPE', 'read_file', ('vocab', 'merges')),
            ('WordPiece', 'from_file', ('vocab',)),
            ('WordPiece', 'read_file', ('vocab',)),
            ('WordLevel', 'from_file', ('vocab',)),
            ('WordLevel', 'read_file', ('vocab',)),
        )
        for i, keyword in enumerate(files)
    ),
    _Opener('sentencepiece.SentencePieceProcessor', 'LoadFromFile', 1, ('arg',)),
    _Opener('torchvision.io', 'read_file', 0, ('path',)),
    _Opener('torchvision.io.image', 'read_file', 0, ('path',)),
)


class _Recording:
    """Stands for a class or function: notes the path, then calls the original, so results keep their true type."""

    def __init__(self, original: Any, opener: _Opener, note: Callable[[str], None]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original = original
        self._opener = opener
        self._note = note

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        path: Any = None
        if len(args) > self._opener.position:
            path = args[self._opener.position]
        else:
            path = next((kwargs[k] for k in self._opener.keywords if k in kwargs), None)
        if isinstance(path, (str, bytes, os.PathLike)):
            self._note(os.fsdecode(path))
        return self._original(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._original)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._original,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Patches:
    """All openers, wrapped while at least one recording runs."""

    def __init__(self, note: Callable[[str], None], *more: Callable[[], Callable[[], None]]) -> None:
        """``more`` wraps something else at the same times, and returns what undoes it."""
        self._note, self._more = note, more
        self._lock = threading.Lock()
        self._users = 0
        self._undo: list[Callable[[], None]] = []

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._install()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._uninstall()

    def _install(self) -> None:
        for opener in _OPENERS:
            # A library may not be loaded, or be of a version without the name or with immutable classes.
            with contextlib.suppress(AttributeError, KeyError, TypeError):
                owner = _owner(opener.module)
                original = getattr(owner, opener.name)
                if isinstance(owner, type):
                    self._undo.append(_patch_class(owner, opener, self._note))
                else:
                    self._undo.append(_patch_module(owner, original, opener, self._note))

        for install in self._more:
            self._undo.append(install())

    def _uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()


def _owner(path: str) -> Any:
    """A loaded module, or a class in one. Never imports: a library that is not loaded has opened nothing."""
    if path in sys.modules:
        return sys.modules[path]
    module, _, name = path.rpartition('.')
    return vars(sys.modules[module])[name]


def _patch_module(owner: Any, original: Any, opener: _Opener, note: Callable[[str], None]) -> Callable[[], None]:
    recording = _Recording(original, opener, note)
    _replace(owner, opener, original, recording)
    # A module that was imported meanwhile took the recording object.
    return lambda: _replace(owner, opener, recording, original)


def _replace(owner: Any, opener: _Opener, old: Any, new: Any) -> None:
    for module in list(sys.modules.values()) if opener.held else [owner]:
        names = getattr(module, '__dict__', None)
        if isinstance(names, dict) and names.get(opener.name) is old:
            names[opener.name] = new
    if vars(owner).get(opener.name) is old:
        setattr(owner, opener.name, new)


def _patch_class(owner: type, opener: _Opener, note: Callable[[str], None]) -> Callable[[], None]:
    own = owner.__dict__.get(opener.name)
    recording = _Recording(getattr(owner, opener.name), opener, note)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return recording(self, *args, **kwargs)

    takes_self = opener.module.startswith('sentencepiece.')
    setattr(owner, opener.name, method if takes_self else staticmethod(recording))

    def undo() -> None:
        if own is None:
            delattr(owner, opener.name)
        else:
            setattr(owner, opener.name, own)

    return undo
