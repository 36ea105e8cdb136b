"""Forbids system calls to this process, as the profile of a container does.

``python -m integration.tests.seccomp CALL=ERRNO... -- LINE`` becomes another program without them.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any


def deny(*rules: str) -> dict[str, Any]:
    """The command ``deny CALL=ERRNO...``: for every thread of this process, for good."""
    import pyseccomp

    chosen = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    chosen.set_attr(pyseccomp.Attr.CTL_TSYNC, 1)
    for rule in rules:
        call, _, name = rule.partition('=')
        chosen.add_rule(pyseccomp.ERRNO(getattr(errno, name)), call)
    chosen.load()
    return {}


def without(*rules: str) -> list[str]:
    """The beginning of a command line that runs without some calls."""
    return [sys.executable, '-m', 'integration.tests.seccomp', *rules, '--']


def main() -> None:
    at = sys.argv.index('--')
    deny(*sys.argv[1:at])
    os.execvp(sys.argv[at + 1], sys.argv[at + 1 :])


if __name__ == '__main__':
    main()
