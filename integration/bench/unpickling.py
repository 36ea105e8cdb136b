"""What the C unpickler and a table of tensors, made by calls of torch, take for the graph of a load, as stock pickle
writes it: no cache around them, so that it does not move when the product gets faster. It can be beaten: the product
writes less, has its tensors made in C++, and leaves a tokenizer for later.

``python -m integration.bench.unpickling LOAD CHECKPOINT FOLDER --dtype DTYPE`` writes what is read here; prints the
seconds of the plain load.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import marshal
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

_ALIGNMENT = 64
_GRAPH, _TABLE = 'graph.pkl', 'table.marshal'
_PARAMETER, _GRADIENT = 1, 2


class _Pickler(pickle.Pickler):
    """Stock pickle, of which a tensor is its row in the table."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.nbytes = 0
        self.storages: list[tuple[int, int]] = []  # offset and size, in bytes
        self.tensors: list[tuple[int, str, int, tuple[int, ...], tuple[int, ...], int]] = []
        self._rows: dict[int, tuple[int, Any]] = {}  # by id, with what must not go away meanwhile
        self._storages: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, obj: Any) -> int | None:
        import torch

        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return None
        found = self._rows.get(id(obj))
        if found is None:
            found = self._rows[id(obj)] = len(self.tensors), obj
            flags = _PARAMETER * isinstance(obj, torch.nn.Parameter) | _GRADIENT * obj.requires_grad
            dtype = str(obj.dtype).removeprefix('torch.')
            row = self._storage(obj), dtype, obj.storage_offset(), tuple(obj.shape), obj.stride(), flags
            self.tensors.append(row)
        return found[0]

    def _storage(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        found = self._storages.get(storage._cdata)
        if found is None:
            found = self._storages[storage._cdata] = len(self.storages), storage
            self.storages.append((self.nbytes, storage.nbytes()))
            self.nbytes += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        return found[0]


def write(loaded: Any, folder: Path) -> None:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(loaded)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _GRAPH).write_bytes(file.getvalue())
    (folder / _TABLE).write_bytes(marshal.dumps((pickler.nbytes, pickler.storages, pickler.tensors)))


def read(folder: Path) -> Any:
    """The graph over memory that is there at once, since nothing reads it: no key, and no check of anything."""
    import torch

    graph = (folder / _GRAPH).read_bytes()
    nbytes, places, rows = marshal.loads((folder / _TABLE).read_bytes())
    collects = gc.isenabled()
    gc.disable()
    try:
        memory = torch.UntypedStorage(nbytes)
        # The method of the base class, which does not ask each time whether the device is meta.
        cut = super(torch.UntypedStorage, memory).__getitem__
        storages = [cut(slice(offset, offset + size)) for offset, size in places]
        dtypes = {name: getattr(torch, name) for name in {row[1] for row in rows}}
        empty, parameter, tensors = torch.empty, torch.nn.Parameter, []
        for storage, dtype, offset, shape, stride, flags in rows:
            tensor = empty(0, dtype=dtypes[dtype]).set_(storages[storage], offset, shape, stride)
            if flags & _PARAMETER:
                tensor.__class__ = parameter  # a third of the time of torch's own way
            if flags & _GRADIENT:
                tensor.requires_grad_(True)
            tensors.append(tensor)
        unpickler: Any = pickle.Unpickler(io.BytesIO(graph))
        unpickler.persistent_load = tensors.__getitem__
        return unpickler.load()
    finally:
        if collects:
            gc.enable()


def get_ready() -> None:
    """The first tensors of a process take torch as long as hundreds of others; the product makes them in advance."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        write(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).half(), Path(folder))
        read(Path(folder))


def main() -> None:
    from integration.bench.loads import LOADS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('what', choices=LOADS)
    parser.add_argument('checkpoint', type=Path)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--dtype', default='float16')
    args = parser.parse_args()
    load = LOADS[args.what]
    load.imports()
    import torch

    start = time.perf_counter()
    loaded = load.load(args.checkpoint, getattr(torch, args.dtype))
    seconds = time.perf_counter() - start
    write(loaded, args.folder)
    print(json.dumps({'seconds': {'load': seconds}}))


if __name__ == '__main__':
    main()
