"""An open entry to the object that it holds: map the arenas, build the tensor table, rebuild the graph."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

from overmind.collector import collector_paused
from overmind.entries import OpenEntry
from overmind.errors import CorruptEntry
from overmind.manifest.model import PARAMETER, REQUIRES_GRAD, Manifest
from overmind.nesting import uncached
from overmind.references import References
from overmind.settings import Pin
from overmind.structure.constants import constant


def restore(
    entry: OpenEntry, references: References, seconds: dict[str, float], populate: bool = False, pin: Pin = 'off'
) -> Any:
    """The cached object, its memory private to this process. Adds ``map`` and ``rebuild`` to seconds.

    Raises CorruptEntry where manifest, arenas and structure do not fit together, or whatever importing the classes of
    the graph raises.
    """
    import torch

    start = time.perf_counter()
    with collector_paused():
        storages = _storages(torch, entry, populate, pin)
        mapped = time.perf_counter()
        result = rebuild(entry.manifest, entry.structure, storages, references)
    if pin != 'off':
        from overmind.gpu.modules import install

        install(torch)
    seconds['map'] = mapped - start
    seconds['rebuild'] = time.perf_counter() - mapped
    return result


def rebuild(manifest: Manifest, structure: bytes, storages: list[Any], references: References) -> Any:
    """The object over storages that are there already, one for each row of the manifest. Raises as restore does."""
    import torch

    from overmind.structure.unpickle import loads

    with uncached(), collector_paused():
        tensors = _tensors(torch, manifest, storages)
        objects = _Objects(zip(range(0, 2 * len(tensors), 2), tensors, strict=True), references)
        objects.update(zip(range(1, 2 * len(storages), 2), storages, strict=True))
        return loads(structure, objects.__getitem__, dict(manifest.modules))


def get_ready() -> None:
    """The first tensors of a process take torch as long as hundreds of others."""
    import torch

    manifest = Manifest('', storages=[(0, 4, 0, 0)], tensors=[(0, 0, 0, 0, 1, PARAMETER, 0)], dims=[1, 1])
    manifest.dtypes, manifest.devices = ['float32'], ['cpu']
    _tensors(torch, manifest, [torch.UntypedStorage(4)])


def map_whole(fd: int, nbytes: int, populate: bool = False, copy: bool = False, lease: int = -1) -> Any:
    """An UntypedStorage over the whole of an arena, private to this process; with copy, over a copy of it."""
    import overmind_cext
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(overmind_cext.map_arena(fd, nbytes, populate=populate, copy=copy, lease=lease)).untyped_storage()


class _Objects(dict[Any, Any]):
    """By persistent id, what the structure refers to. Tensors and storages are there, so that each of thousands of
    look-ups is one of a dict; the rest is found when it is asked for."""

    def __init__(self, tensors: Iterable[tuple[int, Any]], references: References) -> None:
        super().__init__(tensors)
        self._references = references

    def __missing__(self, pid: Any) -> Any:
        if type(pid) is int:
            raise CorruptEntry(f'the structure refers to number {pid} of the table, which is not there')
        if type(pid) is tuple and len(pid) == 3 and pid[0] == 'constant':
            return constant(pid[1], pid[2])
        try:
            at, path = pid
            return self._references.resolve(at, path)
        except (KeyError, AttributeError, TypeError, ValueError) as e:
            raise CorruptEntry(f'the structure refers to {pid!r} of the arguments, which is not there') from e


def _storages(torch: Any, entry: OpenEntry, populate: bool, pin: Pin = 'off') -> list[Any]:
    """One UntypedStorage a row. Ranges were checked when the manifest was decoded: torch's slicing clamps silently."""
    manifest = entry.manifest
    whole = []
    copy, leases = entry.access == 'read', entry.leases or [-1] * len(entry.arenas)
    for file, fd, lease in zip(manifest.arenas, entry.arenas, leases, strict=True):
        make = functools.partial(map_whole, nbytes=file.nbytes, populate=populate, copy=copy, lease=lease)
        whole.append(entry.store.patiently_with(fd, make) if copy and entry.store else make(fd))
    # The method of the base class: torch's own asks each time whether the device is meta.
    windows = [super(torch.UntypedStorage, s).__getitem__ for s in whole]
    out = []
    staged: dict[str, list[tuple[Any, Any]]] = {}  # by device: (target, source)
    for offset, nbytes, arena, device in manifest.storages:
        s = windows[arena](slice(offset, offset + nbytes)) if nbytes else torch.UntypedStorage(0)
        name = manifest.devices[device]
        if name != 'cpu':
            source, s = s, torch.UntypedStorage(nbytes, device=name)
            if pin == 'off' or not name.startswith('cuda') or not nbytes:
                s.copy_(source)
            else:
                staged.setdefault(name, []).append((s, source))
        out.append(s)
    if staged:
        from overmind.gpu.copies import copy_storages

        for name, pairs in staged.items():
            copy_storages(torch, pin, name, pairs)
    return out


def _tensors(torch: Any, manifest: Manifest, storages: list[Any]) -> list[Any]:
    """One Tensor or Parameter a row; a template for each dtype and device saves the dispatch of a factory call."""
    dtypes = [getattr(torch, name, None) for name in manifest.dtypes]
    if not all(isinstance(d, torch.dtype) for d in dtypes):
        raise CorruptEntry(f'a dtype among {manifest.dtypes} is unknown to torch {torch.__version__}')
    templates: dict[tuple[int, int], tuple[Any, int]] = {}
    sizes, devices = [row[1] for row in manifest.storages], [row[3] for row in manifest.storages]
    dims, make, parameter = manifest.dims, torch.Tensor._make_subclass, torch.nn.Parameter
    out: list[Any] = []
    for offset, at, storage, dtype, ndim, flags, _ in manifest.tensors:
        device = devices[storage]
        template = templates.get((dtype, device))
        if template is None:
            empty = torch.empty(0, dtype=dtypes[dtype], device=manifest.devices[device])
            template = templates[dtype, device] = empty.new, empty.element_size()
        new, nbytes = template
        middle = at + ndim
        try:
            if ndim == 1 and not offset and dims[middle] == 1 and dims[at] * nbytes == sizes[storage]:
                t = new(storages[storage])  # as below, in half of the time
            else:
                t = new().set_(storages[storage], offset, dims[at:middle], dims[middle : middle + ndim])
        except RuntimeError as e:
            raise CorruptEntry(f'tensor {len(out)} does not fit its storage: {e}') from e
        if flags & PARAMETER:
            t = make(parameter, t, bool(flags & REQUIRES_GRAD))
        elif flags & REQUIRES_GRAD:
            t.requires_grad_(True)
        out.append(t)
    return out
