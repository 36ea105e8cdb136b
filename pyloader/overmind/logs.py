"""The logger of this package, and where it writes when the program has not set up logging."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TextIO

logger = logging.getLogger('overmind')

_lock = threading.Lock()
_configured = False
_warned: set[str] = set()
_COLOURS = {logging.WARNING: '33', logging.ERROR: '31', logging.CRITICAL: '1;31', logging.DEBUG: '2'}


class _Formatter(logging.Formatter):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def format(self, record: logging.LogRecord) -> str:
        text = f'overmind: {record.levelname.lower()}: {super().format(record)}'
        colour = _COLOURS.get(record.levelno)
        return f'\x1b[{colour}m{text}\x1b[0m' if colour and _coloured(self._stream) else text


class _StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at the time, and not at all once the root logger has a handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None or logging.getLogger().handlers:
            return
        try:
            stream.write(_Formatter(stream).format(record) + '\n')
            stream.flush()
        except Exception:
            self.handleError(record)


def _coloured(stream: TextIO) -> bool:
    if os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb':
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def configure() -> None:
    """Apply OVERMIND_LOG_LEVEL and install the handler; the first call counts, at the first use of the API."""
    global _configured
    if _configured:
        return
    with _lock:
        if _configured:
            return
        _configured = True
        ours = not logger.handlers and not logging.getLogger().handlers
        if ours:
            logger.addHandler(_StderrHandler())
    from overmind.settings import current

    level = current().log_level
    if level is not None:
        logger.setLevel(level.upper())
    elif ours and logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def warn_once(reason_key: str, message: str) -> None:
    """Log a warning, the first time that this key comes up in the process."""
    with _lock:
        if reason_key in _warned:
            return
        _warned.add(reason_key)
    configure()
    logger.warning('%s', message)
