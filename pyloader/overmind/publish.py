"""What goes into an entry, and the steps that put it there, whoever has the memory that is copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overmind.arena import Plan
from overmind.sharing import link_twins
from overmind.staging import Staging
from overmind.statistics import Load


@dataclass(frozen=True, slots=True)
class Content:
    """Manifest and structure as files, and the plans of the arenas."""

    manifest: bytes
    structure: bytes
    plans: list[Plan]


def link_and_reserve(
    staging: Staging, content: Content, agreement: Callable[[Plan, int], int], load: Load
) -> list[Plan]:
    """Link what other entries have, and see that there is room for the rest: the plans that are to be copied.

    agreement(plan, fd) says how many bytes of a file are those of a plan, from its start.
    """
    linked = link_twins(staging, content.plans, agreement)
    plans = [p for p in content.plans if p.name not in linked]
    load.shared = sum(p.nbytes for p in content.plans if p.name in linked)
    staging.reserve(sum(p.nbytes for p in plans) + len(content.structure) + len(content.manifest))
    return plans


def write_rest(staging: Staging, content: Content) -> None:
    """Structure and manifest, when the arenas are there."""
    staging.write('structure.pkl', content.structure)
    staging.write('manifest', content.manifest)
