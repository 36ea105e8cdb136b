"""One copy of the weights, whoever has loaded them, and it is nobody's to change."""

from __future__ import annotations

from integration.harness.daemon import Daemon
from integration.tests.conftest import ForkChild, StartChild, every_shared_way, every_way
from integration.tests.loaders import LARGE_BYTES


@every_shared_way
def test_hit_adds_no_private_memory(daemon: Daemon, start_child: StartChild) -> None:
    first, second = start_child(daemon.root), start_child(daemon.root)
    filled = first.ask('load large')
    before = second.ask('memory')
    loaded = second.ask('load large')
    after = second.ask('memory')
    assert (filled['misses'], loaded['hits']) == (1, 1)
    assert loaded['digest'] == filled['digest']
    assert after['private_dirty'] - before['private_dirty'] < LARGE_BYTES / 4
    assert after['rss'] - before['rss'] >= LARGE_BYTES


@every_shared_way
def test_two_processes_have_each_half(daemon: Daemon, start_child: StartChild) -> None:
    children = [start_child(daemon.root) for _ in range(2)]
    before = [child.ask('memory')['pss'] for child in children]
    for child in children:
        child.ask('load large')
    grown = sum(child.ask('memory')['pss'] for child in children) - sum(before)
    assert grown < 1.5 * LARGE_BYTES


@every_shared_way
def test_first_process_shares_too(daemon: Daemon, start_child: StartChild) -> None:
    child = start_child(daemon.root)
    before = child.ask('memory')
    assert child.ask('load large')['misses'] == 1
    after = child.ask('memory')
    assert after['anonymous'] - before['anonymous'] < LARGE_BYTES / 4


@every_shared_way
def test_lone_process_has_no_memory_of_its_own(daemon: Daemon, start_child: StartChild) -> None:
    """Anonymous says it. Private_Dirty does not: the kernel counts shared pages as private while one process maps them,
    and no longer does when a second one comes."""
    filler = start_child(daemon.root)
    filler.ask('load large')
    filler.finish()
    child = start_child(daemon.root)
    before = child.ask('memory')
    assert child.ask('load large')['hits'] == 1
    after = child.ask('memory')
    assert after['anonymous'] - before['anonymous'] < LARGE_BYTES / 4
    start_child(daemon.root).ask('load large')
    shared = child.ask('memory')
    assert shared['private_dirty'] - before['private_dirty'] < LARGE_BYTES / 4


@every_way
def test_write_in_place_is_seen_by_nobody_else(daemon: Daemon, fork_child: ForkChild) -> None:
    writer, reader = fork_child(daemon.root), fork_child(daemon.root)
    original = writer.ask('load assorted')['digest']
    assert reader.ask('load assorted')['digest'] == original
    assert writer.ask('overwrite')['digest'] != original
    assert reader.ask('digest')['digest'] == original
    third = fork_child(daemon.root).ask('load assorted')
    assert (third['digest'], third['hits']) == (original, 1)


@every_way
def test_processes_at_once_fill_once(daemon: Daemon, fork_child: ForkChild) -> None:
    children = [fork_child(daemon.root) for _ in range(4)]
    for child in children:
        child.send('load large')
    answers = [child.read() for child in children]
    assert sum(answer['misses'] for answer in answers) == 1
    assert sum(answer['hits'] for answer in answers) == 3
    assert len({answer['digest'] for answer in answers}) == 1
