"""The tensors and storages beside a structure: persistent ids on the way out, memory regions for the arenas."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from overmind.arena import FORMAT_DTYPES, Region
from overmind.errors import Unpicklable
from overmind.manifest.model import PARAMETER, REQUIRES_GRAD, StorageRow, TensorRow


@dataclass(slots=True)
class Table:
    """Collects tensors and storages while a graph is pickled; keeps them alive, so that addresses stay true.

    A persistent id is ``2 * index`` for a tensor and ``2 * index + 1`` for a storage.
    """

    storages: list[torch.UntypedStorage] = field(default_factory=list)
    rows: list[TensorRow] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    _named: dict[int, tuple[torch.Tensor, str, list[str]]] = field(default_factory=dict)
    _storage_index: dict[int, int] = field(default_factory=dict)
    _tensor_index: dict[int, int] = field(default_factory=dict)
    _tensors: list[torch.Tensor] = field(default_factory=list)

    def reset(self) -> None:
        """Empty again."""
        for values in (self.storages, self.rows, self.dims, self.dtypes, self.devices, self._tensors):
            values.clear()
        for known in (self._named, self._storage_index, self._tensor_index):
            known.clear()

    def name(self, tensor: torch.Tensor, component: str, name: str) -> None:
        """Say what a tensor is called; the first component that names a storage owns it."""
        self._named.setdefault(id(tensor), (tensor, component, []))[2].append(name)

    def storage(self, s: torch.UntypedStorage) -> int:
        """The index of a storage, added when it is new. Raises Unpicklable for memory that cannot be copied."""
        key = s._cdata
        found = self._storage_index.get(key)
        if found is None:
            device = s.device
            if device.type not in ('cpu', 'cuda', 'xpu', 'mps'):
                raise Unpicklable(f'a storage on the device {device} cannot be kept')
            found = self._storage_index[key] = len(self.storages)
            if device.type == 'cpu' and s.is_shared():
                raise Unpicklable('a storage in shared memory (share_memory_, from_file); a copy would be cut off')
            self.storages.append(s)
            if str(device) not in self.devices:
                self.devices.append(str(device))
        return found

    def tensor(self, t: torch.Tensor) -> int:
        """The index of a plain tensor or Parameter, see :func:`plain`."""
        found = self._tensor_index.get(id(t))
        if found is None:
            storage = self.storage(t.untyped_storage())
            dtype = str(t.dtype).partition('.')[2]
            if dtype not in self.dtypes:
                self.dtypes.append(dtype)
            flags = (REQUIRES_GRAD if t.requires_grad else 0) | (PARAMETER if type(t) is torch.nn.Parameter else 0)
            row = TensorRow(t.storage_offset(), len(self.dims), storage, self.dtypes.index(dtype), t.dim(), flags)
            found = self._tensor_index[id(t)] = len(self.rows)
            self.rows.append(row)
            self._tensors.append(t)
            self.dims += [*t.size(), *t.stride()]
        return found

    def place(self) -> tuple[list[Region], list[tuple[int, int]], list[torch.UntypedStorage]]:
        """Regions of host memory; for each storage its region and the offset within it (bytes); copies kept alive.

        Storages on a device are copied to the host. Storages that overlap (two views of one mapping) share a region.
        """
        host = [s if s.device.type == 'cpu' else s.cpu() for s in self.storages]
        spans = sorted((s.data_ptr(), s.data_ptr() + s.nbytes(), i) for i, s in enumerate(host) if s.nbytes())
        regions: list[Region] = []
        places = [(-1, 0)] * len(host)
        for start, end, i in spans:
            last = regions[-1] if regions else None
            if last is None or start >= last.address + last.nbytes:
                regions.append(Region(start, end - start, '', i))
            else:
                last.nbytes, last.order = max(last.nbytes, end - last.address), min(last.order, i)
            places[i] = (len(regions) - 1, start - regions[-1].address)
        self._describe(regions, places)
        return regions, places, host

    def _describe(self, regions: list[Region], places: list[tuple[int, int]]) -> None:
        """Names, and the dtype and shape of regions that are exactly one contiguous tensor."""
        for t, component, names in self._named.values():
            index = self._index_of(t)
            if index is None or places[index][0] < 0:
                continue
            at, offset = places[index]
            region = regions[at]
            region.component = region.component or component
            dtype = str(t.dtype).partition('.')[2]
            whole = (
                offset == 0
                and dtype in FORMAT_DTYPES
                and t.storage_offset() == 0
                and t.is_contiguous()
                and t.numel() * t.element_size() == region.nbytes
            )
            if whole and not region.name:
                region.name, region.dtype, region.shape = names[0], dtype, tuple(t.shape)
                names = names[1:]
            region.aliases += names

    def _index_of(self, t: torch.Tensor) -> int | None:
        if t.layout is not torch.strided or t.is_nested or t.device.type == 'meta':
            return None
        try:
            return self._storage_index.get(t.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # wrapper subclasses have no storage of their own
            return None

    def storage_rows(self, places: list[tuple[int, int]], at: dict[int, tuple[int, int]]) -> list[StorageRow]:
        """Rows of the manifest; at gives (arena, bytes from the start of its file) for each region."""
        rows = []
        for s, (region, offset) in zip(self.storages, places, strict=True):
            arena, start = at[region] if region >= 0 else (0, 0)
            nbytes = s.nbytes() if region >= 0 else 0
            rows.append(StorageRow(start + offset if nbytes else 0, nbytes, arena, self.devices.index(str(s.device))))
        return rows


def plain(t: torch.Tensor) -> bool:
    """Whether a row of the table says all there is to say of t (whose class is Tensor or Parameter)."""
    return not t.__dict__ and bare(t)


def bare(t: torch.Tensor) -> bool:
    """The same but for its attributes."""
    return (
        t.layout is torch.strided
        and t.device.type != 'meta'
        and not t.is_quantized
        and not t.is_nested
        and t.is_leaf
        and not t.is_inference()
        and t.grad is None
        and not t.is_conj()
        and not t.is_neg()
        and not t._backward_hooks
        and not getattr(t, '_post_accumulate_grad_hooks', None)
    )
