"""Every variable, good and bad."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from overmind import logs, settings
from overmind.errors import OvermindError


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of this test, each key once; and no variable of ours set."""
    for name in list(os.environ):
        if name.startswith('OVERMIND_'):
            monkeypatch.delenv(name)
    messages: dict[str, str] = {}
    monkeypatch.setattr(logs, 'warn_once', lambda key, message: messages.setdefault(key, message))
    monkeypatch.setattr(settings, '_last', None)
    return messages.values()  # type: ignore[return-value]


def test_defaults(said: list[str]) -> None:
    got = settings.current()
    assert got == settings.Settings(trust=(os.geteuid(),))
    assert settings.current() is got
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.root = '/x'  # type: ignore[misc]
    assert not said


@pytest.mark.parametrize(
    ('name', 'text', 'field', 'value'),
    [
        ('ROOT', '/mnt/x', 'root', '/mnt/x'),
        ('ROOT', '/mnt/x/../y/', 'root', '/mnt/y'),
        ('ROOT', 'here', 'root', os.path.abspath('here')),
        ('ROOT', ' ', 'root', None),
        ('DISABLE', '1', 'disabled', True),
        ('DISABLE', 'off', 'disabled', False),
        ('STRICT', 'True', 'strict', True),
        ('LOG_LEVEL', 'DEBUG', 'log_level', 'debug'),
        ('WAIT', '0', 'wait_seconds', 0.0),
        ('DEADLINE', '.5', 'deadline_seconds', 0.5),
        ('AUTOSTART', '1', 'autostart', True),
        ('ACCESS', 'Map', 'access', 'map'),
        ('ACCESS', 'fd', 'access', 'fd'),
        ('POPULATE', 'yes', 'populate', True),
        ('FILL', 'Subprocess', 'fill', 'subprocess'),
        ('FILL', 'background', 'fill', 'background'),
        ('FILL', 'inline', 'fill', 'inline'),
        ('FILL', '', 'fill', 'auto'),
        ('DROP_SOURCES', '1', 'drop_sources', True),
        ('PIN', 'Pool', 'pin', 'pool'),
        ('PIN', 'register', 'pin', 'register'),
        ('PIN', 'off', 'pin', 'off'),
    ],
)
def test_good(
    said: list[str], monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object
) -> None:
    before = settings.current()
    monkeypatch.setenv('OVERMIND_' + name, text)
    assert getattr(settings.current(), field) == value
    assert dataclasses.replace(settings.current(), **{field: getattr(before, field)}) == before
    assert not said


@pytest.mark.parametrize(
    ('name', 'text', 'allowed'),
    [
        ('DISABLE', 'maybe', '1 or 0'),
        ('STRICT', '2', '1 or 0'),
        ('LOG_LEVEL', 'loud', 'debug, info, warning'),
        ('WAIT', '-1', '0 or more'),
        ('WAIT', 'nan', '0 or more'),
        ('WAIT', 'inf', '0 or more'),
        ('DEADLINE', '0', 'more than 0'),
        ('ACCESS', 'write', 'auto, map, fd, read'),
        ('FILL', 'elsewhere', 'auto, background, inline, subprocess'),
        ('AUTOSTART', 'ja', '1 or 0'),
        ('PIN', '1', 'off, register, pool'),
    ],
)
def test_bad(said: list[str], monkeypatch: pytest.MonkeyPatch, name: str, text: str, allowed: str) -> None:
    before = settings.current()
    monkeypatch.setenv('OVERMIND_' + name, text)
    assert settings.current() == before
    (message,) = said
    assert f'OVERMIND_{name}={text!r}' in message
    assert allowed in message


@pytest.mark.parametrize(('name', 'text'), [('ACCESS', 'write'), ('WAIT', 'nan'), ('TRUST', 'nobody-of-that-name')])
def test_bad_is_an_error_where_warnings_are(
    said: list[str], monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '1')
    monkeypatch.setenv('OVERMIND_' + name, text)
    for _ in range(2):
        with pytest.raises(OvermindError, match=f'OVERMIND_{name}={text!r} is not understood'):
            settings.current()
    assert not said
    monkeypatch.setenv('OVERMIND_STRICT', 'x')  # says nothing of what to do
    settings.current()
    assert len(said) == 2


def test_trust(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_TRUST', f' root, 4711,,nobody-of-that-name, {os.geteuid()}')
    assert settings.current().trust == tuple(dict.fromkeys((os.geteuid(), 0, 4711)))
    (message,) = said
    assert 'nobody-of-that-name' in message


def test_read_at_each_call(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settings.enabled()
    monkeypatch.setenv('OVERMIND_ROOT', '/mnt/x')
    assert settings.enabled()
    monkeypatch.setenv('OVERMIND_DISABLE', '1')
    assert not settings.enabled()
    monkeypatch.delenv('OVERMIND_DISABLE')
    monkeypatch.delenv('OVERMIND_ROOT')
    monkeypatch.setenv('OVERMIND_AUTOSTART', '1')
    assert settings.enabled()


def test_cheap(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_ROOT', '/mnt/x')
    assert min(timeit.repeat(settings.current, number=200, repeat=10)) / 200 < 20e-6


LOGGING = 'from overmind.logs import configure, logger, warn_once\n'


def run(script: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, '-c', script],
        env={'PATH': os.environ['PATH'], 'PYTHONPATH': str(Path(settings.__file__).parents[1]), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_log_lines() -> None:
    script = LOGGING + 'configure(); configure(); logger.info("a"); logger.warning("b"); warn_once("k", "100 %s")\n'
    script += 'warn_once("k", "c")'
    assert run(script) == 'overmind: warning: b\novermind: warning: 100 %s\n'
    assert run(script, OVERMIND_LOG_LEVEL='info').startswith('overmind: info: a\n')
    assert run(script, OVERMIND_LOG_LEVEL='error') == ''


@pytest.mark.parametrize('when', ['before', 'after'])
def test_logging_of_the_program_is_respected(when: str) -> None:
    setup = 'import logging; logging.basicConfig(format="mine %(message)s", level="INFO")\n'
    first, second = (setup, 'configure()\n') if when == 'before' else ('configure()\n', setup)
    said = run(LOGGING + first + second + 'logger.warning("b")')
    assert said == 'mine b\n'


def test_level_set_by_the_program_is_kept() -> None:
    script = 'import logging; logging.getLogger("overmind").setLevel("DEBUG")\n' + LOGGING + 'configure()\n'
    assert run(script + 'logger.debug("a")') == 'overmind: debug: a\n'


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        text = ''

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    def line() -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, 'stderr', terminal)
        monkeypatch.setattr(logs.logging.getLogger(), 'handlers', [])
        logs._StderrHandler().emit(logs.logging.LogRecord('overmind', logs.logging.WARNING, '', 0, 'b', (), None))
        return terminal.text

    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.delenv('NO_COLOR', raising=False)
    assert line() == '\x1b[33movermind: warning: b\x1b[0m\n'
    monkeypatch.setenv('NO_COLOR', '1')
    assert line() == 'overmind: warning: b\n'
