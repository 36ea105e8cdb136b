"""The memory of an open entry: its arenas mapped, and the storages and whole tensors in them."""

from __future__ import annotations

import functools
from typing import Any

from overmind.entries import OpenEntry
from overmind.settings import Pin

# (code, bits) of DLPack, of what every supported torch takes.
_DLPACK = {
    'bool': (6, 8), 'uint8': (1, 8), 'int8': (0, 8), 'int16': (0, 16), 'int32': (0, 32), 'int64': (0, 64),
    'float16': (2, 16), 'float32': (2, 32), 'float64': (2, 64), 'bfloat16': (4, 16),
    'complex64': (5, 64), 'complex128': (5, 128),
}  # fmt: skip


class Mapped:
    """The memory of an entry, private to this process: by the row of the manifest its storages, each made when it is
    asked for, those on devices at once.

    ``tensors`` has, for each row, one that is all of a storage, as it is to be, or None; ``rest`` for the latter (row,
    row of the tensor that has the storage or -1). restore fills the list up. Raises what mapping and torch raise;
    IndexError for a row that is not there. Ranges were checked when the manifest was decoded: torch's slicing clamps
    silently.
    """

    def __init__(self, torch: Any, entry: OpenEntry, populate: bool = False, pin: Pin = 'off') -> None:
        import overmind_cext

        self._torch, self._manifest = torch, entry.manifest
        self._made: dict[int, Any] = {}
        self._whole: dict[int, Any] = {}  # storages of whole arenas
        self._owners: dict[int, Any] | None = None  # by row, the tensor that came with a storage
        self._arenas: list[Any] = []
        copy, leases = entry.access == 'read', entry.leases or [-1] * len(entry.arenas)
        for file, fd, lease in zip(entry.manifest.arenas, entry.arenas, leases, strict=True):
            make = functools.partial(
                overmind_cext.map_arena, nbytes=file.nbytes, populate=populate, copy=copy, lease=lease
            )
            self._arenas.append(entry.store.patiently_with(fd, make) if copy and entry.store else make(fd))
        # At once: the helper needs capsules that are not consumed.
        self.tensors, self.rest = self._tensors()
        self._to_devices(pin)

    def __getitem__(self, row: int) -> Any:
        found = self._made.get(row)
        if found is None:
            if self._owners is None:
                rows = zip(self._manifest.tensors, self.tensors, strict=True)
                self._owners = {row[2]: tensor for row, tensor in rows if tensor is not None}
            found, tensor = self._window(row), self._owners.get(row)
            if tensor is not None:
                # Not if a __setstate__ has given the tensor other memory by now.
                own = tensor.untyped_storage()
                found = own if (own.data_ptr(), own.nbytes()) == (found.data_ptr(), found.nbytes()) else found
            self._made[row] = found
        return found

    def _tensors(self) -> tuple[list[Any], list[tuple[int, int]]]:
        import overmind_cext
        from torch.utils.dlpack import from_dlpack

        m, torch = self._manifest, self._torch
        if m.packed is None or 'cpu' not in m.devices:
            return [None] * len(m.tensors), [(row, -1) for row in range(len(m.tensors))]
        dtypes = [_DLPACK.get(name) for name in m.dtypes]
        # The public one looks for what a capsule does not have.
        make, parameter = getattr(torch._C, '_from_dlpack', None) or from_dlpack, torch.nn.Parameter
        return overmind_cext.tensors(self._arenas, m.packed, dtypes, m.devices.index('cpu'), make, parameter)

    def _window(self, row: int) -> Any:
        offset, nbytes, arena, _ = self._manifest.storages[row]
        if not nbytes:
            return self._torch.UntypedStorage(0)
        whole = self._whole.get(arena)
        if whole is None:
            whole = self._whole[arena] = whole_storage(self._arenas[arena])
        return _cut(whole, offset, nbytes)

    def _to_devices(self, pin: Pin) -> None:
        torch, m = self._torch, self._manifest
        if all(name == 'cpu' for name in m.devices):
            return
        staged: dict[str, list[tuple[Any, Any]]] = {}  # by device: (target, source)
        for row, (_, nbytes, _, device) in enumerate(m.storages):
            name = m.devices[device]
            if name == 'cpu':
                continue
            source = self._window(row)
            target = self._made[row] = torch.UntypedStorage(nbytes, device=name)
            if pin == 'off' or not name.startswith('cuda') or not nbytes:
                target.copy_(source)
            else:
                staged.setdefault(name, []).append((target, source))
        if staged:
            from overmind.gpu.copies import copy_storages

            for name, pairs in staged.items():
                copy_storages(torch, pin, name, pairs)


def _cut(whole: Any, offset: int, nbytes: int) -> Any:
    # The method of the base class: torch's own asks each time whether the device is meta.
    return super(type(whole), whole).__getitem__(slice(offset, offset + nbytes))


def map_whole(fd: int, nbytes: int, lease: int = -1) -> Any:
    """An UntypedStorage over the whole of an arena, private to this process."""
    import overmind_cext

    return whole_storage(overmind_cext.map_arena(fd, nbytes, lease=lease))


def whole_storage(capsule: Any) -> Any:
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(capsule).untyped_storage()
