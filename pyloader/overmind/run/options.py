"""The command line of ``overmind run``, which is that of ``python``."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WITH_VALUE = 'WX'
_ENDING = 'cm'
_SERVED = frozenset('bBmOPqRsuWXx')
_SERVED_X = frozenset(
    (
        'context_aware_warnings',
        'cpu_count',
        'dev',
        'disable_remote_debug',
        'faulthandler',
        'frozen_modules',
        'gil',
        'int_max_str_digits',
        'no_debug_ranges',
        'pycache_prefix',
        'thread_inherit_context',
        'utf8',
        'warn_default_encoding',
    )
)
# Each acts on the imports themselves, or on every function from the start.
_UNSERVED_VARIABLES = (
    'COVERAGE_PROCESS_CONFIG',
    'COVERAGE_PROCESS_START',
    'PYTHONDEBUG',
    'PYTHONDUMPREFS',
    'PYTHONDUMPREFSFILE',
    'PYTHONINSPECT',
    'PYTHONMALLOCSTATS',
    'PYTHONPERFSUPPORT',
    'PYTHONPROFILEIMPORTTIME',
    'PYTHONTRACEMALLOC',
    'PYTHONVERBOSE',
    'PYTHON_PERF_JIT_SUPPORT',
)


class Call:
    """What was asked for: ``python [options] program [arguments]``."""

    def __init__(
        self,
        options: list[str],
        program: list[str],  # [file], ['-m', module], or empty
        arguments: list[str],
        letters: list[tuple[str, str]],  # each option with its value
    ) -> None:
        self.options = options
        self.program = program
        self.arguments = arguments
        self.letters = letters

    @property
    def words(self) -> list[str]:
        return [*self.options, *self.program, *self.arguments]


def parse(words: Sequence[str]) -> Call:
    """Split as Python does it. What Python would not understand is for Python to refuse."""
    options: list[str] = []
    letters: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith('-') and rest[0] not in ('-', '--'):
        word = rest.pop(0)
        if word.startswith('--'):
            options.append(word)
            letters.append((word, ''))
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in _ENDING:
                value = word[at:] or (rest.pop(0) if rest else '')
                if word[1 : at - 1]:
                    options.append('-' + word[1 : at - 1])
                program = ['-' + letter, value] if value else ['-' + letter]
                return Call(options, program, rest, [*letters, (letter, value)])
            if letter in _WITH_VALUE:
                value = word[at:]
                options.append(word)
                if not value and rest:
                    value = rest.pop(0)
                    options.append(value)
                letters.append((letter, value))
                break
            letters.append((letter, ''))
        else:
            options.append(word)
    if rest and rest[0] == '--':
        options.append(rest.pop(0))
    return Call(options, rest[:1], rest[1:], letters)


def why_plain(call: Call, environment: Mapping[str, str]) -> str | None:
    """Why a warm parent cannot stand in for this call; None if it can."""
    for letter, value in call.letters:
        if letter not in _SERVED:
            return f'the option {letter if letter.startswith("--") else "-" + letter}'
        if letter == 'X' and value.partition('=')[0] not in _SERVED_X:
            return f'the option -X {value}'
    for name in _UNSERVED_VARIABLES:
        if environment.get(name):
            return f'{name} is set'
    if call.program == ['-m']:
        return 'the option -m without a module'
    if not call.program or call.program[0] == '-':
        return 'a program from standard input'
    if call.program[0] != '-m' and not os.path.exists(call.program[0]):
        return f'there is no {call.program[0]}'
    return None
