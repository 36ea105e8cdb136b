"""What torch does with the capsules; runs on every torch of test_matrix.sh, without numpy."""

import gc
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.dlpack import from_dlpack

from overmind_cext import live_mappings, map_arena, released_mappings, tensors, write_arena

HUGE = 2 << 20


def arena_of(memfd, *tensors):
    """An arena with the bytes of the tensors, each at a multiple of 64; with their offsets."""
    header = b"header".ljust(64)
    offsets, at = [], len(header)
    for tensor in tensors:
        offsets.append(at)
        at += -(-tensor.numel() * tensor.element_size() // 64) * 64
    fd = memfd(at)
    pieces = [(o, t.data_ptr(), t.numel() * t.element_size()) for o, t in zip(offsets, tensors)]
    write_arena(fd, at, header, pieces)
    return fd, at, offsets


@pytest.mark.parametrize("way", [{}, {"populate": True}, {"copy": True}], ids=str)
def test_round_trip(memfd, way):
    weight = torch.randn(1000, 37)
    half = torch.randn(513).to(torch.bfloat16)
    fd, nbytes, offsets = arena_of(memfd, weight, half)
    whole = from_dlpack(map_arena(fd, nbytes, **way))
    assert (whole.dtype, whole.device.type, tuple(whole.shape)) == (torch.uint8, "cpu", (nbytes,))
    assert whole.data_ptr() % HUGE == 0
    storage = whole.untyped_storage()
    assert storage.nbytes() == nbytes
    for source, offset in zip((weight, half), offsets):
        part = storage[offset : offset + source.numel() * source.element_size()]
        assert part.data_ptr() == whole.data_ptr() + offset
        got = torch.empty(0, dtype=source.dtype).set_(part, 0, source.shape, source.stride())
        assert torch.equal(got, source)


def test_slices_keep_the_mapping_alive(memfd):
    source = torch.arange(1000)
    fd, nbytes, (offset,) = arena_of(memfd, source)
    before = released_mappings()
    whole = from_dlpack(map_arena(fd, nbytes))
    storage = whole.untyped_storage()
    slices = [storage[offset + 8 * i : offset + 8 * (i + 10)] for i in range(0, 900, 100)]
    del whole, storage
    gc.collect()
    assert (live_mappings(), released_mappings() - before) == (1, 0)
    tensor = torch.empty(0, dtype=torch.int64).set_(slices[5], 0, (10,), (1,))
    del slices
    gc.collect()
    assert live_mappings() == 1
    assert tensor.tolist() == list(range(500, 510))
    view = tensor[3:]
    del tensor
    assert live_mappings() == 1
    assert view.tolist() == list(range(503, 510))
    del view
    gc.collect()
    assert (live_mappings(), released_mappings() - before) == (0, 1)


def test_5000_slices_and_one_release(memfd):
    source = torch.arange(5000)
    fd, nbytes, (offset,) = arena_of(memfd, source)
    before = released_mappings()
    storage = from_dlpack(map_arena(fd, nbytes)).untyped_storage()
    tensors = [
        torch.empty(0, dtype=torch.int64).set_(storage[offset + 8 * i : offset + 8 * i + 8], 0, (), ())
        for i in range(5000)
    ]
    del storage
    assert [t.item() for t in tensors] == list(range(5000))
    last = tensors.pop(2500)
    del tensors
    gc.collect()
    assert live_mappings() == 1
    del last
    gc.collect()
    assert (live_mappings(), released_mappings() - before) == (0, 1)


def test_writes_are_private(memfd):
    source = torch.zeros(1000)
    fd, nbytes, (offset,) = arena_of(memfd, source)
    one, two = (from_dlpack(map_arena(fd, nbytes)) for _ in range(2))
    one.fill_(255)
    torch.nn.init.ones_(torch.empty(0).set_(two.untyped_storage()[offset : offset + 400], 0, (100,), (1,)))
    assert bytes(two[offset : offset + 4].tolist()) == b"\0\0\x80\x3f"
    third = from_dlpack(map_arena(fd, nbytes))
    assert os.pread(fd, nbytes, 0) == b"header".ljust(64) + bytes(nbytes - 64)
    assert not third[64:].any()


def test_parameter_and_gradient(memfd):
    fd, nbytes, (offset,) = arena_of(memfd, torch.ones(8))
    storage = from_dlpack(map_arena(fd, nbytes)).untyped_storage()
    weight = torch.nn.Parameter(torch.empty(0).set_(storage[offset : offset + 32], 0, (8,), (1,)))
    (weight * 3).sum().backward()
    with torch.no_grad():
        weight -= weight.grad
    assert weight.tolist() == [-2.0] * 8


def test_capsule_is_consumed_once(memfd):
    fd, nbytes, _ = arena_of(memfd, torch.ones(8))
    before = released_mappings()
    capsule = map_arena(fd, nbytes)
    tensor = from_dlpack(capsule)
    with pytest.raises((RuntimeError, ValueError, TypeError, BufferError)):
        from_dlpack(capsule)
    del capsule
    assert (live_mappings(), released_mappings() - before) == (1, 0)
    assert tensor[:6].tolist() == list(b"header")
    del tensor
    gc.collect()
    assert (live_mappings(), released_mappings() - before) == (0, 1)


def test_last_reference_in_another_thread(memfd):
    fd, nbytes, _ = arena_of(memfd, torch.ones(8))
    before = released_mappings()
    tensors = [from_dlpack(map_arena(fd, nbytes))]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert (live_mappings(), released_mappings() - before) == (0, 1)


def test_last_reference_in_the_autograd_engine(memfd):
    """Saved tensors of a graph may die on a thread that has no GIL."""
    fd, nbytes, (offset,) = arena_of(memfd, torch.ones(8))
    storage = from_dlpack(map_arena(fd, nbytes)).untyped_storage()
    data = torch.empty(0).set_(storage[offset : offset + 32], 0, (8,), (1,))
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * data).sum()
    del storage, data
    assert live_mappings() == 1
    loss.backward()
    del loss
    gc.collect()
    assert live_mappings() == 0


def test_fork(memfd):
    fd, nbytes, (_offset,) = arena_of(memfd, torch.ones(8))
    tensor = from_dlpack(map_arena(fd, nbytes))
    child = os.fork()
    if child == 0:
        tensor[0] = 0
        good = tensor[1] == ord("e")
        del tensor
        os._exit(0 if good and live_mappings() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor[0] == ord("h")
    assert live_mappings() == 1


EXIT = """
import os, sys, threading, torch
from torch.utils.dlpack import from_dlpack
from overmind_cext import live_mappings, map_arena
fd = os.memfd_create("arena")
os.write(fd, bytes(5000))
whole = from_dlpack(map_arena(fd, 5000))
storage = whole.untyped_storage()
parts = [storage[i : i + 8] for i in range(0, 5000, 8)]
cycle = [from_dlpack(map_arena(fd, 5000))]
cycle.append(cycle)
module = torch.nn.Linear(2, 2)
module.weight = torch.nn.Parameter(torch.empty(0).set_(parts[0], 0, (2,), (1,)))
torch.kept = from_dlpack(map_arena(fd, 5000))
sys.kept = from_dlpack(map_arena(fd, 5000))
threading.Thread(target=threading.Event().wait, args=(0.2,)).start()
holder = threading.local()
holder.kept = from_dlpack(map_arena(fd, 5000))
unused = map_arena(fd, 5000)
assert live_mappings() == 6
"""


def test_release_at_exit():
    done = subprocess.run(
        [sys.executable, "-c", EXIT],
        cwd=Path(__file__).parent,  # Python looks there first, and must find the installed package
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr and "terminate" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("dtype", "pair"),
    [
        (torch.bool, (6, 8)), (torch.uint8, (1, 8)), (torch.int8, (0, 8)), (torch.int16, (0, 16)),
        (torch.int32, (0, 32)), (torch.int64, (0, 64)), (torch.float16, (2, 16)), (torch.float32, (2, 32)),
        (torch.float64, (2, 64)), (torch.bfloat16, (4, 16)), (torch.complex64, (5, 64)), (torch.complex128, (5, 128)),
    ],
    ids=str,
)  # fmt: skip
def test_views_are_tensors_as_any(memfd, dtype, pair):
    source = torch.randint(0, 2, (2, 3, 4, 5)).to(dtype)
    if dtype.is_floating_point:
        source = source.contiguous(memory_format=torch.channels_last)
    number = torch.ones((), dtype=dtype)
    fd, nbytes, (at, last) = arena_of(memfd, source, number)
    size = source.numel() * source.element_size()
    arena = map_arena(fd, nbytes)
    dims = [*source.shape, *source.stride()]
    tables = (
        struct.pack("<QQIIQQII", at, size, 0, 0, last, source.element_size(), 0, 0),
        struct.pack("<QIIHBBIQIIHBBI", 0, 0, 0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0),
        struct.pack("<8q", *dims),
    )
    (got, one), rest = tensors([arena], tables, [pair], 0, torch._C._from_dlpack, torch.nn.Parameter)
    assert rest == []
    del arena
    assert (type(got), got.dtype, got.shape, got.stride()) == (torch.Tensor, dtype, source.shape, source.stride())
    assert (one.shape, one.item()) == ((), number.item())
    assert torch.equal(got, source)
    assert (got.untyped_storage().nbytes(), got.storage_offset(), got.untyped_storage().resizable()) == (size, 0, False)
    assert got.is_leaf and not got.requires_grad and not got.is_inference()
    got.zero_()
    assert not got.any()
    second = from_dlpack(map_arena(fd, nbytes)).untyped_storage()[at : at + size]
    assert torch.equal(torch.empty(0, dtype=dtype).set_(second, 0, source.shape, source.stride()), source)


def test_a_view_becomes_a_parameter(memfd):
    source = torch.randn(3, 4)
    fd, nbytes, (at,) = arena_of(memfd, source)
    tables = struct.pack("<QQII", at, 48, 0, 0), struct.pack("<QIIHBBI", 0, 0, 0, 0, 2, 3, 0), struct.pack("<4q", 3, 4, 4, 1)
    make = torch._C._from_dlpack
    (weight,), _ = tensors([map_arena(fd, nbytes)], tables, [(2, 32)], 0, make, torch.nn.Parameter)
    assert type(weight) is torch.nn.Parameter and weight.requires_grad and weight.is_leaf
    layer = torch.nn.Linear(4, 3, bias=False)
    layer.weight = weight
    (layer(torch.ones(1, 4)).sum() * 2).backward()
    assert torch.equal(weight.grad, torch.full((3, 4), 2.0))
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    assert torch.allclose(weight, source - 2)
    assert repr(weight).startswith("Parameter containing")
    half = layer.half()
    assert type(half.weight) is torch.nn.Parameter and half.weight.dtype == torch.float16


def test_more_elements_than_torch_counts(memfd):
    """torch finds out when it has taken the memory over."""
    fd, nbytes, (at,) = arena_of(memfd, torch.ones(1))
    tables = struct.pack("<QQII", at, 4, 0, 0), struct.pack("<QIIHBBI", 0, 0, 0, 0, 2, 0, 0), struct.pack("<4q", 1 << 40, 1 << 40, 0, 0)
    make = torch._C._from_dlpack
    assert tensors([map_arena(fd, nbytes)], tables, [(2, 32)], 0, make, torch.nn.Parameter) == ([None], [(0, -1)])
