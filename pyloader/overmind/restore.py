"""An open entry to the object that it holds: map the arenas, build the tensor table, rebuild the graph."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from typing import Any

from overmind.collector import collector_paused
from overmind.entries import OpenEntry
from overmind.errors import CorruptEntry
from overmind.manifest.model import PARAMETER, REQUIRES_GRAD, STORAGE, TENSOR, Arena, Manifest, Packed
from overmind.nesting import uncached
from overmind.references import References
from overmind.settings import Pin
from overmind.storages import Mapped
from overmind.structure.constants import constant


def restore(
    entry: OpenEntry, references: References, seconds: dict[str, float], populate: bool = False, pin: Pin = 'off'
) -> Any:
    """The cached object, its memory private to this process. Adds ``map`` and ``rebuild`` to seconds: the former has
    the tensors that are all of a storage, as nearly all are.

    Raises CorruptEntry where manifest, arenas and structure do not fit together, or whatever importing the classes of
    the graph raises.
    """
    import torch

    start = time.perf_counter()
    with collector_paused():
        storages = Mapped(torch, entry, populate, pin)
        mapped = time.perf_counter()
        result = rebuild(entry.manifest, entry.structure, storages, references)
    if pin != 'off':
        from overmind.gpu.modules import install

        install(torch)
    seconds['map'] = mapped - start
    seconds['rebuild'] = time.perf_counter() - mapped
    return result


def rebuild(manifest: Manifest, structure: bytes, storages: list[Any] | Mapped, references: References) -> Any:
    """The object over storages, one for each row of the manifest. Raises as restore does."""
    import torch

    from overmind.structure.unpickle import loads

    with uncached(), collector_paused():
        tensors = _tensors(torch, manifest, storages)
        objects = _Objects(zip(range(0, 2 * len(tensors), 2), tensors, strict=True), storages, references)
        return loads(structure, objects.__getitem__, dict(manifest.modules))


def get_ready() -> None:
    """The first tensors of a process take torch as long as hundreds of others."""
    import torch

    row = TENSOR.pack(0, 0, 0, 0, 1, PARAMETER, 0)
    tables = STORAGE.pack(0, 4, 0, 0), row + row, struct.pack('<2q', 1, 1)  # two tensors that share a storage
    manifest = Manifest('', arenas=[Arena('', 4)], dtypes=['float32'], devices=['cpu'])
    manifest.storages, manifest.tensors = Packed(tables[0], STORAGE), Packed(tables[1], TENSOR)
    manifest.dims, manifest.packed = [1, 1], tables
    with open(os.memfd_create('overmind', os.MFD_CLOEXEC), 'wb') as file:
        file.truncate(4)
        _tensors(torch, manifest, Mapped(torch, OpenEntry(manifest, b'', [file.fileno()], -1)))


class _Objects(dict[Any, Any]):
    """By persistent id, what the structure refers to. Tensors are there, so that each of thousands of look-ups is one
    of a dict; the rest is found when it is asked for."""

    def __init__(self, tensors: Iterable[tuple[int, Any]], storages: Any, references: References) -> None:
        super().__init__(tensors)
        self._storages, self._references = storages, references

    def __missing__(self, pid: Any) -> Any:
        if type(pid) is int:
            try:
                if pid > 0 and pid % 2:
                    return self._storages[pid // 2]
            except IndexError:
                pass
            raise CorruptEntry(f'the structure refers to number {pid} of the table, which is not there')
        if type(pid) is tuple and len(pid) == 3 and pid[0] == 'constant':
            return constant(pid[1], pid[2])
        try:
            at, path = pid
            return self._references.resolve(at, path)
        except (KeyError, AttributeError, TypeError, ValueError) as e:
            raise CorruptEntry(f'the structure refers to {pid!r} of the arguments, which is not there') from e


def _tensors(torch: Any, manifest: Manifest, storages: Any) -> list[Any]:
    """One Tensor or Parameter a row; those that the storages have not made already one after another."""
    dtypes = [getattr(torch, name, None) for name in manifest.dtypes]
    if not all(isinstance(d, torch.dtype) for d in dtypes):
        raise CorruptEntry(f'a dtype among {manifest.dtypes} is unknown to torch {torch.__version__}')
    if isinstance(storages, Mapped):
        out, rest = storages.tensors, storages.rest
    else:
        out, rest = [None] * len(manifest.tensors), [(row, -1) for row in range(len(manifest.tensors))]
    dims, make, parameter = manifest.dims, torch.Tensor._make_subclass, torch.nn.Parameter
    for row, owner in rest:
        offset, at, storage, dtype, ndim, flags, _ = manifest.tensors[row]
        memory = storages[storage] if owner < 0 else out[owner].untyped_storage()
        middle, nbytes = at + ndim, memory.nbytes()
        try:
            t = torch.empty(0, dtype=dtypes[dtype], device=memory.device)
            t.set_(memory, offset, dims[at:middle], dims[middle : middle + ndim])
        except RuntimeError as e:
            raise CorruptEntry(f'tensor {row} does not fit its storage: {e}') from e
        if memory.nbytes() != nbytes:  # torch has enlarged one that is empty
            raise CorruptEntry(f'tensor {row} is larger than its storage')
        if flags & PARAMETER:
            t = make(parameter, t, bool(flags & REQUIRES_GRAD))
        elif flags & REQUIRES_GRAD:
            t.requires_grad_(True)
        out[row] = t
    return out
