"""What a hit has made is old for the garbage collector at once: so often, and not against a program's own wishes."""

from __future__ import annotations

import gc
import pathlib
import weakref
from collections.abc import Iterator

import pytest
from torch import nn

from overmind import background, collector
from overmind.api import load, stats


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collector, '_left', 3)
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def generation(obj: object) -> int:
    return next(n for n in range(3) if any(o is obj for o in gc.get_objects(n)))


def test_objects_are_old_and_still_go_when_nobody_has_them() -> None:
    node = Node()
    assert generation(node) < 2
    collector.made_to_stay()
    assert generation(node) == 2
    assert gc.get_freeze_count() == 0
    gone = weakref.ref(node)
    del node
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_not_again_and_again() -> None:
    """What is made and dropped in a loop must be found without a look at everything."""
    for _ in range(3):
        collector.made_to_stay()
    node = Node()
    collector.made_to_stay()
    assert generation(node) < 2


def test_what_the_program_has_frozen_stays_so() -> None:
    frozen = Node()
    gc.freeze()
    count = gc.get_freeze_count()
    assert count > 0
    node = Node()
    collector.made_to_stay()
    assert gc.get_freeze_count() == count
    assert generation(node) < 2
    assert not any(o is frozen for o in gc.get_objects())
    gc.unfreeze()
    collector.made_to_stay()  # it is not asked a second time, which would take as long
    assert generation(node) < 2


def test_a_parent_that_has_frozen_says_so() -> None:
    collector.leave_young()
    node = Node()
    collector.made_to_stay()
    assert generation(node) < 2


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))


def test_a_first_load_that_is_written_meanwhile_leaves_nothing_young(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next one has the collector look at everything, a third of a second beside what libraries leave behind."""
    monkeypatch.setenv('OVERMIND_FILL', 'background')
    before = len(gc.get_objects(0)) + len(gc.get_objects(1))
    made = load(layers)
    assert stats().loads[-1].outcome == 'miss'
    assert {generation(part) for part in made.modules()} == {2}
    assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < before + 1000
    assert background.finish(60)
