"""Who loads. A new opponent is a row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from integration.harness.runs import environment


@dataclass(frozen=True)
class Opponent:
    """Options of the program under test, and whether a first load has to fill something."""

    name: str
    options: tuple[str, ...] = ()
    fills: bool = False

    def environment(self, root: Path) -> dict[str, str]:
        return environment(root, OVERMIND_STRICT='1') if self.fills else environment()


PLAIN = Opponent('plain')
OURS = Opponent('overmind-fs', ('--cache',), fills=True)
OPPONENTS = (PLAIN, OURS)
