"""The command line of ``overmind run``, which is that of ``python``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass
class Call:
    """What was asked for: ``python [options] program [arguments]``."""

    options: list[str] = field(default_factory=list)
    program: list[str] = field(default_factory=list)  # [file], ['-m', module], or empty
    arguments: list[str] = field(default_factory=list)
    letters: list[tuple[str, str]] = field(default_factory=list)  # each option with its value

    @property
    def words(self) -> list[str]:
        return [*self.options, *self.program, *self.arguments]

    @property
    def title(self) -> str:
        return ' '.join([*self.options, *self.program])


def parse(words: Sequence[str]) -> Call:
    """Split as Python does it. What Python would not understand is for Python to refuse."""
    call, rest = Call(), list(words)
    while rest and rest[0].startswith('-') and rest[0] not in ('-', '--'):
        word = rest.pop(0)
        if word.startswith('--'):
            call.options.append(word)
            call.letters.append((word, ''))
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in _ENDING:
                value = word[at:] or (rest.pop(0) if rest else '')
                if word[1 : at - 1]:
                    call.options.append('-' + word[1 : at - 1])
                call.letters.append((letter, value))
                call.program, call.arguments = ['-' + letter, value], rest
                return call
            if letter in _WITH_VALUE:
                value = word[at:]
                call.options.append(word)
                if not value and rest:
                    value = rest.pop(0)
                    call.options.append(value)
                call.letters.append((letter, value))
                break
            call.letters.append((letter, ''))
        else:
            call.options.append(word)
    if rest and rest[0] == '--':
        call.options.append(rest.pop(0))
    call.program, call.arguments = rest[:1], rest[1:]
    return call


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
    if not call.program or call.program[0] == '-':
        return 'a program from standard input'
    if call.program[0] != '-m' and not os.path.exists(call.program[0]):
        return f'there is no {call.program[0]}'
    return None
