"""A ScriptModule as its code and its storages: ``torch.jit.save`` puts both into one archive, and a load copies it all.

The archive is written as torch.package does it, which keeps every storage (of parameters, buffers, attributes and
constants of graphs) as a record of its own. The pickle gets the archive without those records; a load finds the
storages, which are slices of the mapped arenas, in a context that torch asks before it reads a record.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickletools
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch

from overmind.errors import Unpicklable
from overmind.structure import rebuild

_PREFIX, _SUFFIX = '.data/', '.storage'
_RANDOM = '.data/serialization_id'
_OPERATOR = re.compile(rb'\bops\.([A-Za-z_]\w*)\.')


def reduce(module: Any) -> Any:
    """The reduction of a ScriptModule; with all bytes in one archive where its parts are not enough.

    Raises Unpicklable for a graph that is another one once it has been code: passes over the graph of a module that was
    made in this process can leave such. A sum in another order is enough for other results.
    """
    try:
        records, storages = _parts(module)
        archive = _archive(records)
        same = all(s.device.type == 'cpu' for s in storages.values())
        if same:
            again = _parts(build(archive, storages))[0]
            if any(again.get(n, data) != data for n, data in records.items() if n.endswith('.py')):
                raise Unpicklable(
                    'a ScriptModule whose graph torch.jit.save does not keep; load it with torch.jit.load'
                )
            same = _meaning(again) == _meaning(records)
    except (AttributeError, TypeError, RuntimeError):  # these interfaces of torch are not public ones
        same = False
    if same:
        return build, (archive, storages, _libraries(records))
    data = io.BytesIO()
    torch.jit.save(module, data)
    return rebuild.script_module, (data.getvalue(),)


def build(archive: bytes, storages: dict[str, torch.UntypedStorage], libraries: Iterable[str] = ()) -> Any:
    """The module over these storages; called by structure.pkl. Importing the libraries registers their operators."""
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    context = torch._C.DeserializationStorageContext()
    for name, storage in storages.items():
        context.add_storage(name, torch.empty(0, dtype=torch.uint8).set_(storage))
    reader = torch._C.PyTorchFileReader(io.BytesIO(archive))
    unit = torch._C.CompilationUnit()
    return torch.jit._recursive.wrap_cpp_module(
        torch._C._import_ir_module_from_package(unit, reader, context, None, '0')
    )


def _parts(module: Any) -> tuple[dict[str, bytes], dict[str, torch.UntypedStorage]]:
    """The records of the archive that are no storages, and the storages by name: the module's own where they are
    known, so that nothing is there twice."""
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    serializer = torch._C.ScriptModuleSerializer(writer)
    serializer.serialize(module._c, 0)
    serializer.write_files()
    writer.write_end_of_file()
    known = {}
    for t in [*module.parameters(), *module.buffers()]:
        storage = t.untyped_storage()
        known[f'{serializer.storage_context().get_or_add_storage(storage)}{_SUFFIX}'] = storage
    reader = torch._C.PyTorchFileReader(io.BytesIO(out.getbuffer()))
    records, storages = {}, {}
    for name in reader.get_all_records():
        if not name.endswith(_SUFFIX):
            if name != _RANDOM:
                records[name] = reader.get_record(name)
            continue
        short = name.removeprefix(_PREFIX)
        storage = known.get(short)
        if storage is None:
            data = bytearray(reader.get_record(name))
            storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else None
        if storage is not None and storage.nbytes():
            storages[short] = storage
    return records, storages


def _libraries(records: dict[str, bytes]) -> tuple[str, ...]:
    """Loaded packages that own operators which the code calls: a namespace has the name of its library, as a rule."""
    found = {n.decode() for name, data in records.items() if name.endswith('.py') for n in _OPERATOR.findall(data)}
    return tuple(sorted(found & sys.modules.keys()))


def _meaning(records: dict[str, bytes]) -> dict[str, Any]:
    """Records to compare. What a pickle memoizes depends on who else holds an object, not on the module."""
    return {
        name: _operations(data) if name.endswith('.pkl') else data
        for name, data in records.items()
        if not name.endswith('.debug_pkl')
    }


def _operations(data: bytes) -> list[Any]:
    out: list[Any] = []
    memo: dict[Any, int] = {}
    for operation, argument, _ in pickletools.genops(data):
        if 'PUT' in operation.name:
            memo[argument] = len(out)
        elif 'GET' in operation.name:
            out.append(memo[argument])
        else:
            out.append((operation.name, argument))
    return out


def _archive(records: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(out)
    for name, data in records.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return out.getvalue()
