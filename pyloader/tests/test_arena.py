"""Arenas are safetensors files and keep every address modulo 64."""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
from random import Random

import pytest
import safetensors
import torch
from hypothesis import given
from hypothesis import strategies as st
from roundtrip import roundtrip, write
from torch import nn

from overmind import arena
from overmind.arena import ALIGN, PAGE, Region, plan, shards


@given(st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 300)), min_size=1, max_size=30))
def test_no_holes_no_overlaps_and_residues_kept(pieces: list[tuple[int, int]]) -> None:
    at, regions = 1 << 20, []
    for gap, nbytes in pieces:
        at += gap
        regions.append(Region(at, nbytes, ''))
        at += nbytes
    p = plan('model', regions, list(range(len(regions))))
    header = json.loads(p.header[8:])
    spans = sorted(e['data_offsets'] for k, e in header.items() if k != '__metadata__')
    assert spans[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert len(p.header) % PAGE == 0
    assert len(p.header) + spans[-1][1] == p.nbytes
    assert all(p.offsets[i] % ALIGN == r.address % ALIGN for i, r in enumerate(regions))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.randoms())
def test_shards_hold_everything_once_whatever_the_addresses(sizes: list[int], random: Random) -> None:
    def made(addresses: list[int]) -> list[tuple[str, list[int]]]:
        regions = [Region(a, n, '', order=i) for i, (a, n) in enumerate(zip(addresses, sizes, strict=True))]
        groups = {'unet': list(range(0, len(sizes), 2)), 'vae': list(range(1, len(sizes), 2))}
        return list(shards({name: found for name, found in groups.items() if found}, regions))

    addresses = [i << 20 for i in range(len(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, 'SHARD', 500)
        found = made(addresses)
        assert made(random.sample(addresses, len(addresses))) == found
    assert sorted(i for _, part in found for i in part) == list(range(len(sizes)))
    assert len({name for name, _ in found}) == len(found)
    assert all(sum(sizes[i] for i in part) <= 500 or len(part) == 1 for _, part in found)
    alone = [name for name, _ in found if '-' not in name]
    assert all(sum(n for i, n in enumerate(sizes) if i % 2 == ('unet', 'vae').index(name)) <= 500 for name in alone)


def test_a_huge_entry_has_few_arenas() -> None:
    regions = [Region(i << 40, arena.SHARD // 2 + 1, '', order=i) for i in range(3000)]
    assert len(list(shards({'model': list(range(3000))}, regions))) < 128


def at_residue(values: torch.Tensor, residue: int) -> torch.Tensor:
    """The same values, with a storage of its own at an address of that residue modulo 64."""
    nbytes = values.numel() * values.element_size()
    whole = torch.UntypedStorage(nbytes + 128)
    start = (residue - whole.data_ptr()) % ALIGN
    part = whole[start : start + nbytes]
    return torch.empty(0, dtype=values.dtype).set_(part, 0, values.shape, values.stride()).copy_(values)


@pytest.mark.parametrize('residue', [0, 8, 24, 40, 63 // 4 * 4])
def test_addresses_keep_their_residue(residue: int) -> None:
    made = {f't{i}': at_residue(torch.randn(5 + i), (residue + 4 * i) % ALIGN) for i in range(6)}
    back = roundtrip(made)
    for name, t in made.items():
        assert torch.equal(back[name], t)
        assert back[name].data_ptr() % ALIGN == t.data_ptr() % ALIGN


def test_safetensors_reads_every_contiguous_tensor(tmp_path: object) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Embedding(3, 4).bfloat16())
    model[0].register_buffer('turned', torch.arange(6.0).reshape(2, 3).t())
    model.register_parameter('tied', model[0].weight)
    _, _, files = write(model)
    path = f'{tmp_path}/a.safetensors'
    with open(path, 'wb') as f:
        f.write(os.pread(files[0], 1 << 20, 0))
    os.close(files[0])
    with safetensors.safe_open(path, 'pt') as f:
        aliases = json.loads(f.metadata()['overmind.aliases'])
        keys = set(f.keys())
        for name, t in model.state_dict().items():
            if name in ('0.turned', 'tied', '0.weight'):
                continue
            assert torch.equal(f.get_tensor(name), t), name
        (tied,) = {'tied', '0.weight'} & keys
        assert torch.equal(f.get_tensor(tied), model[0].weight)
    assert aliases[({'tied', '0.weight'} - {tied}).pop()] == tied
    assert '0.turned' not in keys
    assert aliases['0.turned'].startswith('storage.')


def test_overlapping_storages_share_their_memory() -> None:
    memory = mmap.mmap(-1, 4096)
    buffer = (ctypes.c_char * 4096).from_buffer(memory)
    a = torch.frombuffer(memory, dtype=torch.uint8, count=256, offset=0)
    b = torch.frombuffer(memory, dtype=torch.uint8, count=256, offset=128)
    a[:] = torch.arange(256, dtype=torch.uint8)
    x, y = roundtrip([a, b])
    assert torch.equal(x, a)
    assert torch.equal(y, b)
    x[200] = 7
    assert y[72] == 7
    del buffer


def test_equal_components_give_equal_arenas() -> None:
    """Wherever their storages lie, and whatever else is in the entry."""

    def part(slots: list[int]) -> nn.Module:
        memory = torch.UntypedStorage(1024 * len(slots))
        module = nn.Module()
        for n, slot in enumerate(slots):
            storage = memory[1024 * slot : 1024 * (slot + 1)]
            t = torch.empty(0).set_(storage, 0, (16, 16), (1, 16) if n % 3 else (16, 1)).fill_(n)
            module.register_buffer(f'x{n}', t)
            module.register_buffer(f'y{n}', t)
        return module

    files = [*write(part([0, 1, 2, 3, 4, 5]))[2], *write([torch.arange(5.0), part([5, 3, 1, 0, 2, 4])])[2]]
    contents = [os.pread(fd, 1 << 20, 0) for fd in files]
    for fd in files:
        os.close(fd)
    # The list has one arena, in which its own tensor comes last.
    assert contents[0][4096:] == contents[1][4096 : 4096 + 6 * 1024]
