"""The environment variables of this package, read when a load begins and never at import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from overmind.errors import OvermindError

Access = Literal['auto', 'map', 'fd', 'read']
Where = Literal['auto', 'background', 'inline', 'subprocess']
Pin = Literal['off', 'register', 'pool']

_LEVELS = ('debug', 'info', 'warning', 'error', 'critical')
_ACCESS = ('auto', 'map', 'fd', 'read')
_FILL = ('auto', 'background', 'inline', 'subprocess')
_PIN = ('off', 'register', 'pool')
_TRUE = ('1', 'true', 'yes', 'on')
_FALSE = ('', '0', 'false', 'no', 'off')
_FLAG = '1 or 0'

T = TypeVar('T')


@dataclass(frozen=True)
class Settings:
    """One reading of the environment."""

    root: str | None = None  # OVERMIND_ROOT: the mount or a plain directory; absolute
    disabled: bool = False  # OVERMIND_DISABLE
    strict: bool = False  # OVERMIND_STRICT: failures of the cache are raised
    log_level: str | None = None  # OVERMIND_LOG_LEVEL, lower case; None when not set
    wait_seconds: float = 600.0  # OVERMIND_WAIT: for another process that fills the same entry
    deadline_seconds: float = 3.0  # OVERMIND_DEADLINE: for touching the mount
    trust: tuple[int, ...] = ()  # OVERMIND_TRUST: uids whose entries may be read; the own one is first
    autostart: bool = False  # OVERMIND_AUTOSTART: start a daemon when OVERMIND_ROOT is not set
    access: Access = 'auto'  # OVERMIND_ACCESS: how arenas are reached; read where that is not possible
    populate: bool = False  # OVERMIND_POPULATE: fault mapped memory in at once
    fill: Where = 'auto'  # OVERMIND_FILL: where a miss runs the real loader, and what the program waits for
    drop_sources: bool = False  # OVERMIND_DROP_SOURCES: take the files of a fill out of the page cache
    pin: Pin = 'off'  # OVERMIND_PIN: how weights are copied to a GPU


_VARIABLES = (
    'OVERMIND_ROOT',
    'OVERMIND_DISABLE',
    'OVERMIND_STRICT',
    'OVERMIND_LOG_LEVEL',
    'OVERMIND_WAIT',
    'OVERMIND_DEADLINE',
    'OVERMIND_TRUST',
    'OVERMIND_AUTOSTART',
    'OVERMIND_ACCESS',
    'OVERMIND_POPULATE',
    'OVERMIND_FILL',
    'OVERMIND_DROP_SOURCES',
    'OVERMIND_PIN',
)
_last: tuple[tuple[object, ...], Settings] | None = None


def current() -> Settings:
    """What the environment says now. The same object as long as nothing changed."""
    global _last
    get = os.environ.get
    raw = (os.geteuid(), *[get(name) for name in _VARIABLES])
    last = _last
    if last is not None and last[0] == raw:
        return last[1]
    settings = _parse()
    _last = raw, settings
    return settings


def enabled() -> bool:
    """Whether a patched loader may use the cache at all: not disabled, and a place for it is configured."""
    settings = current()
    return not settings.disabled and (settings.root is not None or settings.autostart)


def _parse() -> Settings:
    root = os.environ.get('OVERMIND_ROOT', '').strip()
    return Settings(
        root=os.path.abspath(os.path.expanduser(root)) if root else None,
        disabled=_read('OVERMIND_DISABLE', _flag, False, _FLAG),
        strict=_read('OVERMIND_STRICT', _flag, False, _FLAG),
        log_level=_read('OVERMIND_LOG_LEVEL', _level, None, ', '.join(_LEVELS)),
        wait_seconds=_read('OVERMIND_WAIT', _seconds, 600.0, 'seconds, 0 or more'),
        deadline_seconds=_read('OVERMIND_DEADLINE', _positive, 3.0, 'seconds, more than 0'),
        trust=_trust(),
        autostart=_read('OVERMIND_AUTOSTART', _flag, False, _FLAG),
        access=_read('OVERMIND_ACCESS', lambda text: _one_of(_ACCESS, text), 'auto', ', '.join(_ACCESS)),
        populate=_read('OVERMIND_POPULATE', _flag, False, _FLAG),
        fill=_read('OVERMIND_FILL', lambda text: _one_of(_FILL, text), 'auto', ', '.join(_FILL)),
        drop_sources=_read('OVERMIND_DROP_SOURCES', _flag, False, _FLAG),
        pin=_read('OVERMIND_PIN', lambda text: _one_of(_PIN, text), 'off', ', '.join(_PIN)),
    )


def _read(name: str, parse: Callable[[str], T], default: T, allowed: str) -> T:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return default
    try:
        return parse(text.strip())
    except ValueError:
        shown = 'not set' if default is None else str(int(default) if isinstance(default, bool) else default)
        _warn(name, text, f'allowed: {allowed}; using the default, {shown}')
        return default


def _flag(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _level(text: str) -> str:
    if text.lower() not in _LEVELS:
        raise ValueError(text)
    return text.lower()


def _one_of(words: tuple[str, ...], text: str) -> Any:
    if text.lower() not in words:
        raise ValueError(text)
    return text.lower()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float('inf'):
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError(text)
    return value


def _trust() -> tuple[int, ...]:
    """The own effective uid first, then those listed. An unknown name is left out, never guessed."""
    uids = [os.geteuid()]
    for word in os.environ.get('OVERMIND_TRUST', '').split(','):
        word = word.strip()
        if not word:
            continue
        try:
            uids.append(int(word) if word.isascii() and word.isdigit() else _uid_of(word))
        except KeyError:
            _warn('OVERMIND_TRUST', word, 'allowed: user names and uids, separated by commas; ignoring this one')
    return tuple(dict.fromkeys(uids))


def _uid_of(name: str) -> int:
    import pwd

    return pwd.getpwnam(name).pw_uid


def _warn(name: str, text: str, rest: str) -> None:
    from overmind.logs import warn_once

    said = f'{name}={text!r} is not understood; {rest}'
    with contextlib.suppress(ValueError):
        if _flag(os.environ.get('OVERMIND_STRICT', '').strip()):
            raise OvermindError(said)
    warn_once(f'setting {name}={text}', said)
