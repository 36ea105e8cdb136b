"""A fill lets go of the real object's memory as it copies it, and has the object again whatever fails after that."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import nn

from overmind import arena, fill
from overmind.api import load, stats
from overmind.originals import Originals
from overmind.staging import Staging

LOG = logging.getLogger('loader-calls')
KEPT: list[torch.Tensor] = []


def model(seed: int) -> nn.Module:
    LOG.info('model')
    torch.manual_seed(seed)
    m = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    m[3].weight = m[2].weight
    return m


def watched(seed: int) -> nn.Module:
    m = model(seed)
    m.own = m[0]  # type: ignore[assignment]
    keep(m[5].weight)
    return m


def keep(t: torch.Tensor) -> None:
    KEPT[:] = [t]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these models were large: a step for each of their tensors, and the program waits for it."""
    monkeypatch.setenv('OVERMIND_FILL', 'inline')
    monkeypatch.setattr(fill, 'WORTH', 0)
    monkeypatch.setattr(fill, 'STEP', 1)


def equal(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return list(x) == list(y) and all(torch.equal(x[n], y[n]) for n in x)


def calls(caplog: pytest.LogCaptureFixture) -> int:
    return sum(r.name == 'loader-calls' for r in caplog.records)


def test_what_a_fill_returns_is_equal_and_ties_are_kept(root: pathlib.Path) -> None:
    for _ in range(2):
        found = load(model, 1)
        assert equal(found, model(1))
        assert found[3].weight is found[2].weight
    assert (stats().misses, stats().hits) == (1, 1)


def test_an_arena_is_made_when_those_before_it_are_copied_and_let_go(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its memory can be what was given up."""
    monkeypatch.setattr(arena, 'SHARD', 64 * 64 * 4)
    steps: list[str] = []
    real_arena, real_let_go = Staging.arena, Originals.let_go

    def make(self: Staging, name: str, nbytes: int) -> Any:
        steps.append('made')
        return real_arena(self, name, nbytes)

    def let_go(self: Originals, *args: Any) -> None:
        steps.append('let go')
        real_let_go(self, *args)

    monkeypatch.setattr(Staging, 'arena', make)
    monkeypatch.setattr(Originals, 'let_go', let_go)
    assert equal(load(model, 1), model(1))
    assert equal(load(model, 1), model(1))
    assert (stats().misses, stats().hits) == (1, 1)
    made = [i for i, step in enumerate(steps) if step == 'made']
    assert len(made) > 4
    assert all(steps[i - 1] == 'let go' for i in made[1:])


def test_what_somebody_else_holds_keeps_its_bytes(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    load(watched, 2)
    assert stats().misses == 1
    assert torch.equal(KEPT[0], model(2)[5].weight)


@pytest.mark.parametrize('copied', [0, 3])
def test_a_copy_that_fails_in_the_middle(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, copied: int
) -> None:
    import overmind_cext

    monkeypatch.setenv('OVERMIND_STRICT', '0')
    real, done = overmind_cext.write_arena, []

    def write_arena(*args: Any, **kwargs: Any) -> None:
        if len(done) == copied:
            raise OSError(errno.EIO, 'Input/output error')
        done.append(args)
        real(*args, **kwargs)

    monkeypatch.setattr(overmind_cext, 'write_arena', write_arena)
    caplog.set_level(logging.INFO, 'loader-calls')
    found = load(model, 3)
    assert (len(done), calls(caplog), stats().bypasses) == (copied, 1, 1)
    assert equal(found, model(3))
    assert found[3].weight is found[2].weight
    assert not list((root / 'pipelines').iterdir())


def test_a_commit_that_fails(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')

    def commit(self: Staging) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(Staging, 'commit', commit)
    caplog.set_level(logging.INFO, 'loader-calls')
    found = load(model, 4)
    assert (calls(caplog), stats().bypasses) == (1, 1)
    assert equal(found, model(4))
    with torch.no_grad():
        found[0].weight.add_(1)  # its memory is its own


def test_what_cannot_be_brought_back_is_loaded_again(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    real, done = fill.rebuild, []

    def rebuild(*args: Any) -> Any:
        if done:
            raise ValueError('no')
        done.append(True)
        return real(*args)

    def commit(self: Staging) -> None:
        raise OSError(errno.EIO, 'Input/output error')

    monkeypatch.setattr(fill, 'rebuild', rebuild)
    monkeypatch.setattr(Staging, 'commit', commit)
    caplog.set_level(logging.INFO, 'loader-calls')
    assert equal(load(model, 5), model(5))
    assert calls(caplog) == 3  # the load, the load again, and the comparison's own


class Stubborn:
    """Cannot be rebuilt where it was made."""

    def __init__(self) -> None:
        self.weight = torch.ones(3)

    def __reduce__(self) -> Any:
        return _refuse, (self.weight,)


def _refuse(weight: torch.Tensor) -> Any:
    raise ValueError('refused')


def stubborn() -> Stubborn:
    return Stubborn()


def test_what_cannot_be_rebuilt_is_returned_as_it_was_made(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_STRICT', '0')
    assert torch.equal(load(stubborn).weight, torch.ones(3))
    assert stats().bypasses == 1


PEAK = """
    import gc
    import sys
    import torch
    from torch import nn
    from overmind import fill
    from overmind.api import load

    gc.disable()
    fill.STEP = 32 << 20

    def model(cycle):
        # Sizes that the allocator takes from its heap, and others that are mappings of their own.
        m = nn.ModuleList(nn.Linear(n, 1024, bias=False) for n in [4096] * 4 + [16384] * 4)
        if cycle:
            m.me = [m]
        return m

    def peak():
        with open('/proc/self/status') as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith('VmHWM'))

    with open('/proc/self/clear_refs', 'w') as f:
        f.write('5')
    before = peak()
    m = load(model, sys.argv[1] == 'cycle')
    nbytes = sum(p.numel() * p.element_size() for p in m.parameters())
    print((peak() - before) / nbytes)
"""


@pytest.mark.parametrize('case', ['plain', 'cycle'])
def test_the_peak_is_that_of_the_load_and_a_step(root: pathlib.Path, tmp_path: pathlib.Path, case: str) -> None:
    script = tmp_path / 'peak.py'
    script.write_text(textwrap.dedent(PEAK))
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    line = [sys.executable, str(script), case]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.5, done.stderr
