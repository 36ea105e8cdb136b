"""Optimizers keep what their own pickle leaves out: hooks, and the step that a scheduler has wrapped."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from roundtrip import roundtrip
from torch import nn

calls: list[str] = []


def before(*_: Any) -> None:
    calls.append('before')


def after(*_: Any) -> None:
    calls.append('after')


def train(model: nn.Module, optimizer: Any, scheduler: Any) -> list[torch.Tensor]:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def made(kind: Any) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


KINDS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]


@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize('steps', [0, 1])
def test_with_its_scheduler(kind: Any, steps: int) -> None:
    model, optimizer, scheduler = made(kind)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    optimizer.note = 'kept'
    for _ in range(steps):
        train(model, optimizer, scheduler)
    calls.clear()
    back = roundtrip([model, optimizer, scheduler])
    assert list(vars(back[1])) == list(vars(optimizer))
    assert back[1].note == 'kept'
    assert back[2].optimizer is back[1]
    assert back[1].param_groups[0]['params'][0] is back[0].weight
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        found = train(*back)
    assert calls == ['before', 'after'] * 3
    assert all(torch.equal(a, b) for a, b in zip(found, train(model, optimizer, scheduler), strict=True))
    assert back[2].get_last_lr() == scheduler.get_last_lr()


READ = """
import sys, warnings
import overmind.api, torch
import test_optimizers as program
parts = overmind.api.load(program.with_hook, program.KINDS[1])
program.calls.clear()
warnings.simplefilter('error')
program.train(*parts)
print(overmind.api.stats().hits, program.calls)
"""


def with_hook(kind: Any) -> tuple[nn.Module, Any, Any]:
    model, optimizer, scheduler = made(kind)
    optimizer.register_step_pre_hook(before)
    return model, optimizer, scheduler


def test_in_a_process_that_has_made_none(root: Path) -> None:
    """The class runs hooks only once an optimizer was made."""
    line = [sys.executable, '-c', f'import sys; sys.path[:0] = {sys.path!r}\n{READ}']
    said = [subprocess.run(line, capture_output=True, text=True, timeout=120, check=False) for _ in range(2)]
    assert [done.stdout.strip() for done in said] == [f"{n} ['before', 'before', 'before']" for n in (0, 1)], said
