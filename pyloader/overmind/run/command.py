"""The command ``overmind``. Starts fast: no library is imported, and no other part of this package."""

from __future__ import annotations

import sys

from overmind.run.options import parse

TYPE_CHECKING = False  # as in messages.py
if TYPE_CHECKING:
    from typing import NoReturn

_HELP = """\
usage: overmind run [PYTHON OPTIONS] FILE [ARGUMENTS]
       overmind run [PYTHON OPTIONS] -m MODULE [ARGUMENTS]
       overmind run --explain [PYTHON OPTIONS] FILE | -m MODULE
       overmind run --list
       overmind run --stop
       overmind gc [DIR] [--max-bytes SIZE] [--max-age TIME] [--dry-run]
       overmind --version

gc makes a cache smaller that is a plain folder; see overmind gc --help.

run runs a program as python does, in a process that is forked from one that has its libraries imported.

  --explain  what is imported in advance for a program, what is not, and why
  --list     the resident processes, with their memory
  --stop     end them; the programs that run go on

environment: OVERMIND_RUN_MAX   most resident processes (4), 0 for plain python always
             OVERMIND_RUN_IDLE  seconds without a run after which one ends (14400)
"""


def main() -> NoReturn:
    words = sys.argv[1:]
    if not words or words[0] in ('-h', '--help'):
        sys.stdout.write(_HELP)
        sys.exit(0 if words else 2)
    if words[0] == '--version':
        from overmind import __version__

        sys.stdout.write(f'overmind {__version__}\n')
        sys.exit(0)
    if words[0] == 'gc':
        from overmind import gc

        sys.exit(gc.main(words[1:]))
    if words[0] != 'run':
        _misused(f'overmind: there is no command {words[0]!r}; see overmind --help')
    _run(words[1:])


def _misused(text: str) -> NoReturn:
    sys.stderr.write(f'{text}\n')
    sys.exit(2)


def _run(words: list[str]) -> NoReturn:
    first = words[0] if words else '--help'
    if first in ('-h', '--help'):
        sys.stdout.write(_HELP)
        sys.exit(0 if words else 2)
    if first in ('--list', '--stop', '--explain'):
        from overmind.run import report

        if first == '--explain':
            if not words[1:]:
                _misused('overmind run: --explain needs a program')
            sys.exit(report.explain(parse(words[1:])))
        if words[1:]:
            _misused(f'overmind run: nothing may follow {first}')
        sys.exit(report.show() if first == '--list' else report.stop_all())
    from overmind.run.client import run

    try:
        run(parse(words))
    except KeyboardInterrupt:
        import signal

        from overmind.run.relay import end_as

        end_as(signal.SIGINT)
