"""The first step of a fill."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest
import torch

from overmind.api import load, stats


def make(path: str) -> torch.Tensor:
    return torch.load(path)['weight']


def test_a_folder_of_a_daemon_that_was_replaced_at_that_moment(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / 'x.pt'
    torch.save({'weight': torch.arange(6.0)}, checkpoint)
    real, stale = os.mkdir, set()

    def mkdir(path: str, mode: int = 0o777) -> None:
        if '/staging/' in path and path not in stale:
            stale.add(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        real(path, mode)

    monkeypatch.setattr(os, 'mkdir', mkdir)
    load(make, str(checkpoint))
    assert {os.path.basename(path) for path in stale} == {stats().loads[-1].id, 'tensors'}
    assert stats().loads[-1].outcome == 'miss'
