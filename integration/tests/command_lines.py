"""Which options the commands of overmind-fs have, and which of them files and documents use."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess

from integration.harness.places import daemon_binary

PROGRAM = 'overmind-fs'
_FLAG = re.compile(r'(?<![\w-])--?[a-z][a-z-]*')


def _help(*words: str) -> str:
    done = subprocess.run([daemon_binary(), *words, '--help'], capture_output=True, text=True, check=True)
    return done.stdout


def _section(text: str, name: str) -> list[str]:
    """The first column of a section of a help text."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if line and not line.startswith(' '):
            inside = line == f'{name}:'
        elif inside and line.strip():
            found.append(re.split(r'\s{2,}', line.strip())[0])
    return found


@functools.cache
def commands() -> frozenset[str]:
    return frozenset(name for names in _section(_help(), 'COMMANDS') for name in names.split(', '))


@functools.cache
def flags(command: str = '') -> frozenset[str]:
    """All of a command, or those that stand before one."""
    column = _section(_help(command), 'OPTIONS') if command else _section(_help(), 'GLOBAL OPTIONS')
    return frozenset(flag for text in column for flag in _FLAG.findall(text))


def all_flags() -> frozenset[str]:
    return flags().union(*map(flags, commands()))


def problems(words: list[str]) -> list[str]:
    """What the binary would not understand of a command line, which begins behind its own name."""
    while words and words[0].startswith('-'):  # before the command
        name, _, value = words[0].partition('=')
        if name not in flags():
            return [f'no option {name} before a command']
        takes = name in ('--root', '-r') and not value
        words = words[1 + takes :]
    if not words:
        return []
    command, *rest = words
    if command not in commands():
        return [f'no command {command}']
    used = [word.partition('=')[0] for word in rest if word.startswith('-')]
    return [f'{command} has no option {name}' for name in used if name not in flags(command)]


def in_text(text: str) -> list[list[str]]:
    """The command lines in the code of a Markdown text: what stands behind the program's name up to the end of the
    command."""
    code = [line for line in text.splitlines() if line.startswith('    ')]
    code += re.findall(r'`([^`]+)`', text)
    lines = [line for piece in code for line in re.findall(rf'(?<![\w/-]){PROGRAM}(?= [a-z-])([^;|&#>]*)', piece)]
    return [shlex.split(line.replace("'", '')) for line in lines]


def options_in(text: str) -> set[str]:
    """Options that a Markdown text names by themselves, without a command."""
    return {span.split()[0].partition('=')[0] for span in re.findall(r'`(--[a-z][^`]*)`', text)}
