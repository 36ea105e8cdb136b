"""The benchmark: what it computes from what it measured, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.bench import promises, unpickling
from integration.bench.figures import break_even, figures
from integration.bench.measure import Timing
from integration.bench.memory import Footprint
from integration.bench.opponents import OURS, PLAIN, UNPICKLER
from integration.bench.report import Results, as_json, memory_table, text
from integration.bench.workloads import WORKLOADS
from integration.harness.places import REPOSITORY

WORKLOAD = WORKLOADS[0]

FIGURES = pytest.mark.one_way('figures of which no daemon was asked')


def result(**seconds: float) -> dict[str, Any]:
    return {
        'seconds': {'import': 7.0, **seconds},
        'whole': 8.0,
        'before': {},
        'after': {'peak': 10, 'pss': 5, 'huge': 9},
        'bytes': 10,
    }


def timings(plain: float, hit: float, fill: float) -> list[Timing]:
    return [
        Timing(WORKLOAD, PLAIN, runs=[result(load=plain, touch=0.5)]),
        Timing(WORKLOAD, OURS, fills=[result(load=fill)], runs=[result(patch=0.01, load=hit, touch=0.25)]),
    ]


@FIGURES
@pytest.mark.parametrize(
    ('plain', 'hit', 'fill', 'loads'), [(2.0, 0.25, 10.0, 4.875), (2.0, 0.25, 1.0, 1.0), (0.1, 0.5, 10.0, None)]
)
def test_fill_has_paid_for_itself(plain: float, hit: float, fill: float, loads: float | None) -> None:
    """Ten seconds and then half a second each, against two and a half each."""
    assert break_even(*timings(plain, hit, fill)) == loads


@FIGURES
def test_figures_are_ratios_of_medians() -> None:
    found = figures(timings(2.0, 0.25, 10.0), [], {}, {}, {}, memcpy=0.1)
    assert found['a.rebuild.plain'] == 8
    assert found['a.touch.plain'] == 2
    assert found['a.fill.plain'] == 5
    assert found['a.fill.copies'] == 8
    assert found['patch.ms'] == 10


@FIGURES
def test_first_loads_are_compared_with_the_plain_ones_of_their_rounds() -> None:
    plain, ours = timings(2.0, 0.25, 10.0)
    plain.runs += [{**plain.runs[0], 'seconds': {**plain.runs[0]['seconds'], 'load': 0.5}}] * 4
    found = figures([plain, ours], [], {}, {}, {}, memcpy=0.1)
    assert (found['a.rebuild.plain'], found['a.fill.plain']) == (2, 5)


@FIGURES
def test_promise_that_is_not_kept_is_named() -> None:
    (promise,) = (one for one in promises.promises() if one.name == 'a.rebuild.plain')
    assert promises.broken({'a.rebuild.plain': promise.limit}) == []
    (problem,) = promises.broken({'a.rebuild.plain': promise.limit * 0.9})
    assert promise.what in problem


@FIGURES
def test_limits_are_no_stricter_than_promises() -> None:
    for promise in promises.promises():
        assert promise.keeps(promise.promised, promise.limit), promise


@FIGURES
def test_failure_is_in_the_table_and_in_the_json() -> None:
    failed = Timing(WORKLOAD, OURS, failure='it does not run here')
    results = Results('tiny', 'bench', timings=[failed])
    assert 'a, overmind-fs: it does not run here' in text(results)
    assert as_json(results)['timings'][0]['failure'] == 'it does not run here'


@pytest.mark.one_way('that the benchmark runs: `make bench` itself measures the ways side by side')
def test_benchmark_of_a_tiny_model(tmp_path: Path) -> None:
    output = tmp_path / 'figures.json'
    line = [sys.executable, '-m', 'integration.bench', '--size=tiny', '--only=times', '--workloads=c', '--repeat=1']
    line += [f'--opponents=plain,overmind-fs,{UNPICKLER.name}', f'--output={output}']
    done = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    measured = json.loads(output.read_text())
    found = [(one['opponent'], one['failure']) for one in measured['timings']]
    assert found == [('plain', ''), ('overmind-fs', ''), (UNPICKLER.name, '')]
    assert {'import', 'patch', 'load', 'touch'} <= measured['timings'][1]['stages'].keys()
    assert measured['timings'][1]['fill']['median'] > 0
    assert {'c.rebuild.plain', 'c.rebuild.unpickler'} <= measured['figures'].keys()


@FIGURES
def test_floor_has_the_graph_of_the_load(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Embedding(7, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 7, bias=False))
    model[2].weight = model[0].weight
    model[1].weight.requires_grad_(False)
    unpickling.write(model, tmp_path)
    found = unpickling.read(tmp_path)
    assert [type(part) for part in found] == [type(part) for part in model]
    assert found[2].weight is found[0].weight

    def facts(one: torch.nn.Module) -> list[object]:
        tensors = [*one.named_parameters(), *one.named_buffers()]
        return [(name, type(t), t.dtype, t.shape, t.requires_grad) for name, t in tensors]

    assert facts(found) == facts(model)


@FIGURES
def test_memory_of_uneven_counts_is_one_table() -> None:
    both = {
        ('a', 'plain'): [Footprint(1, 10**6, pss=10**6), Footprint(8, 10**6)],
        ('a', 'dropped'): [Footprint(1, 10**6, pss=2 * 10**6)],
    }
    lines = memory_table(both).splitlines()
    assert lines[0].split()[-2:] == ['N=1', 'N=8']
    found = [line.split()[1:] for line in lines if ' pss ' in line]
    assert found == [['plain', 'pss', '1', 'MB', '-'], ['dropped', 'pss', '2', 'MB', '-']]


@FIGURES
def test_memory_without_times() -> None:
    ours = {('a', OURS.name): [Footprint(1, 10**6, pss=10**6, anonymous=10**6), Footprint(2, 10**6, 10**6, 4 * 10**6)]}
    found = figures([], [], ours, {}, {}, memcpy=None)
    assert found == {'a.memory.copies': 1, 'a.memory.private-mb': 2}
