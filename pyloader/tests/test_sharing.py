"""Arenas that another entry has already are linked, here in a plain directory, where that is a hard link."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from typing import Any

import overmind_cext
import pytest
import torch

from overmind.api import load, stats


class Pipe:
    """Has its components in arenas of their own, as a pipeline of diffusers does."""

    def __init__(self, **parts: torch.nn.Module) -> None:
        self.parts = parts

    @property
    def components(self) -> dict[str, torch.nn.Module]:
        return self.parts

    def register_modules(self) -> None: ...


def part(seed: int, last: float = 0.0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    part = torch.nn.Module()
    for name in 'abc':
        part.register_buffer(name, torch.rand(20_000, generator=generator))
    part.c[-1] += last
    return part


def pipe(vae: int, unet: int, last: float = 0.0) -> Pipe:
    return Pipe(vae=part(vae, last), unet=part(unet))


def alone(seed: int, last: float = 0.0) -> torch.nn.Module:
    return part(seed, last)


def inodes(root: pathlib.Path, component: str) -> list[int]:
    return sorted(p.stat().st_ino for p in root.glob(f'pipelines/*/tensors/{component}.safetensors'))


def same(a: Pipe, b: Pipe) -> bool:
    return all(
        torch.equal(t, b.parts[name].state_dict()[key])
        for name, p in a.parts.items()
        for key, t in p.state_dict().items()
    )


def test_equal_components_are_one_file(root: pathlib.Path) -> None:
    for seeds in [(1, 2), (1, 3)]:
        assert same(load(pipe, *seeds), pipe(*seeds))
        assert same(load(pipe, *seeds), pipe(*seeds))
    assert torch.equal(load(alone, 1).c, part(1).c)
    assert [load.outcome for load in stats().loads] == ['miss', 'hit', 'miss', 'hit', 'miss']
    one, other = inodes(root, 'vae')
    assert one == other
    assert inodes(root, 'model') == [one]
    assert len(set(inodes(root, 'unet'))) == 2
    filled = [load for load in stats().loads if load.outcome == 'miss']
    size = next(root.glob('pipelines/*/tensors/vae.safetensors')).stat().st_size
    assert [load.shared for load in filled] == [0, size, size]
    shutil.rmtree(next(root.glob('pipelines/pipe-*')))
    assert same(load(pipe, 1, 2), pipe(1, 2))
    assert same(load(pipe, 1, 3), pipe(1, 3))
    assert set(inodes(root, 'vae') + inodes(root, 'model')) == {one}


def test_one_other_number_at_the_end_is_another_arena(root: pathlib.Path) -> None:
    load(pipe, 1, 2)
    assert same(load(pipe, 1, 3, 0.5), pipe(1, 3, 0.5))
    assert len(set(inodes(root, 'vae'))) == 2
    assert stats().loads[-1].shared == 0


def test_what_was_compared_is_linked(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what has its name by then."""
    load(alone, 1)
    (arena,) = root.glob('pipelines/*/tensors/model.safetensors')
    (compared,) = inodes(root, 'model')
    agreement = overmind_cext.agreement

    def then_replaced(fd: int, nbytes: int, header: bytes, pieces: Any) -> int:
        agreed = agreement(fd, nbytes, header, pieces)
        if agreed == nbytes:
            os.link(arena, root.parent / 'kept')  # a file without a name cannot be linked
            arena.unlink()
            arena.write_bytes(bytes(nbytes))
        return agreed

    monkeypatch.setattr(overmind_cext, 'agreement', then_replaced)
    assert same(load(pipe, 1, 2), pipe(1, 2))
    assert inodes(root, 'vae') == [compared]


@pytest.mark.parametrize('code', [errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOENT])
def test_where_links_are_refused_it_is_written(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    load(pipe, 1, 2)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, 'link', refuse)
    assert same(load(pipe, 1, 3), pipe(1, 3))
    assert stats().loads[-1].outcome == 'miss'
    assert len(set(inodes(root, 'vae'))) == 2


def test_arenas_that_differ_late_are_not_all_compared(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in range(1, 6):
        load(alone, 1, float(last))
    compared = []
    agreement = overmind_cext.agreement

    def counted(*plan: Any) -> int:
        compared.append(agreement(*plan))
        return compared[-1]

    monkeypatch.setattr(overmind_cext, 'agreement', counted)
    load(alone, 1, 9.0)
    assert len(compared) == 2
    assert min(compared) > 200_000
    load(alone, 2, 9.0)
    assert len(compared) == 2 + 6  # these differ at their beginning
