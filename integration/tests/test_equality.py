"""What the cache gives is what the loaders give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.harness.daemon import WAYS
from integration.harness.runs import environment, run
from integration.tests.conftest import Served

LOADS = 4


@pytest.mark.parametrize('what', ['first', 'second'])
def test_weights_and_outputs_are_equal_bit_for_bit(served: Served, what: str) -> None:
    result = getattr(served, what)
    assert result['weights'] == served.plain['weights']
    assert result['outputs'] == served.plain['outputs']


def test_outputs_mean_something(served: Served) -> None:
    outputs = served.plain['outputs']
    assert outputs['finite']
    assert all(0.01 < spread < 100 for name, spread in outputs['spread'].items() if name != 'tokens')


def test_first_process_fills_and_second_hits(served: Served) -> None:
    counts = [
        [result['stats'][name] for name in ('hits', 'misses', 'bypasses')] for result in (served.first, served.second)
    ]
    assert counts == [[0, LOADS, 0], [LOADS, 0, 0]]
    assert [load['outcome'] for load in served.second['stats']['loads']] == ['hit'] * LOADS


@pytest.mark.parametrize('what', ['first', 'second'])
def test_passed_vae_is_the_pipelines_own(served: Served, what: str) -> None:
    assert getattr(served, what)['vae_is_the_same']


@pytest.mark.parametrize('what', ['plain', 'first', 'second'])
def test_nothing_is_warned_about(served: Served, what: str) -> None:
    assert 'overmind:' not in getattr(served, what)['stderr']


@pytest.mark.parametrize('what', ['first', 'second'])
def test_arenas_are_reached_the_way_they_should(served: Served, what: str) -> None:
    assert {load['access'] for load in getattr(served, what)['stats']['loads']} == {served.way}


# By reading it makes one.
@pytest.mark.parametrize('served', ['passthrough', 'fd', 'directory'], indirect=True, scope='session')
def test_second_process_makes_no_copy(served: Served) -> None:
    plain, second = [
        result['after']['anonymous'] - result['before']['anonymous'] for result in (served.plain, served.second)
    ]
    assert second < plain + 10e6


_CHANGING = ('--change', '--weights', '--forward')


@pytest.fixture(scope='session')
def changed(checkpoint: Path) -> dict[str, Any]:
    return run(checkpoint, *_CHANGING)


@pytest.mark.parametrize('served', WAYS, indirect=True, scope='session')
def test_change_of_the_vae_between_the_loads_is_kept(served: Served, checkpoint: Path, changed: dict[str, Any]) -> None:
    ours = run(checkpoint, *_CHANGING, '--cache', env=environment(served.root, OVERMIND_STRICT='1'))
    assert ours['change_kept']
    assert ours['vae_is_the_same']
    assert ours['weights'] == changed['weights']
    assert ours['weights'] != served.plain['weights']
    assert ours['outputs'] == changed['outputs']


# Under each way: test_write_in_place_is_seen_by_nobody_else.
@pytest.mark.parametrize('served', ['passthrough'], indirect=True, scope='session')
def test_writes_of_one_process_are_its_own(served: Served, checkpoint: Path) -> None:
    env = environment(served.root, OVERMIND_STRICT='1')
    run(checkpoint, '--cache', '--overwrite', env=env)
    after = run(checkpoint, '--cache', '--weights', env=env)
    assert after['weights'] == served.plain['weights']
    assert after['stats']['hits'] == LOADS
