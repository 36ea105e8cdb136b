"""ScriptModules come back over the mapped memory, the same in every byte."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile
from typing import Any, Optional

import pytest
import torch
from roundtrip import roundtrip, write
from torch import nn

from overmind.errors import Unpicklable
from overmind.structure import rebuild, script

pytestmark = pytest.mark.filterwarnings('ignore')


class Several(nn.Module):
    """Parameters that share memory, a buffer that is a view, attributes, constants in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.l2, self.k = nn.Linear(64, 64), nn.Linear(64, 64), 3
        self.l2.weight = self.l.weight
        self.small = nn.Parameter(torch.randn(5).half(), requires_grad=False)
        self.register_buffer('b', torch.arange(100.0)[36:])
        self.attribute = torch.randn(64)
        self.listed = [torch.ones(2), torch.zeros(0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return self.l(x) + self.b
        return self.l2(x) * self.k + self.attribute + torch.tensor([1.5]) + self.listed[0].sum()


class Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x) + torch.arange(64) + CONSTANT


CONSTANT = torch.linspace(0, 1, 64)
X = torch.linspace(-1, 1, 128).reshape(2, 64)


def saved(m: Any) -> bytes:
    out = io.BytesIO()
    torch.jit.save(m, out)
    return out.getvalue()


def content(m: Any) -> dict[str, bytes]:
    """The files of a saved module, but for pickles, which are not the same each time, and a random number."""
    with zipfile.ZipFile(io.BytesIO(saved(m))) as z:
        return {n: z.read(n) for n in z.namelist() if not n.endswith(('/data.pkl', '/constants.pkl', '_id'))}


def loaded(m: Any) -> Any:
    return torch.jit.load(io.BytesIO(saved(m)))


MODULES = {
    'scripted': lambda: torch.jit.script(Several().eval()),
    'traced': lambda: torch.jit.trace(Traced(), X),
    'frozen': lambda: torch.jit.freeze(torch.jit.trace(Traced().eval(), X)),
    'double': lambda: torch.jit.script(Several().double()),
    'nothing': lambda: torch.jit.script(nn.ReLU()),
}


def mapped(address: int) -> str:
    """The file that is mapped at an address of this process."""
    for line in pathlib.Path('/proc/self/maps').read_text().splitlines():
        start, _, end = line.split()[0].partition('-')
        if int(start, 16) <= address < int(end, 16):
            return line.split(maxsplit=5)[5] if len(line.split()) > 5 else ''
    return ''


@pytest.mark.parametrize('name', MODULES)
def test_the_same_module(name: str) -> None:
    m = loaded(MODULES[name]())
    back = roundtrip(m)
    assert type(back) is type(m)
    assert back.original_name == m.original_name
    assert content(back) == content(m)
    assert str(back.inlined_graph) == str(m.inlined_graph)
    for x in (X.double(), -X.double()) if name == 'double' else (X, -X, X.abs()):
        try:
            expected = m(x)
        except RuntimeError:  # dtypes that do not go together
            continue
        assert torch.equal(back(x), expected)
    mine, theirs = [*back.named_parameters(), *back.named_buffers()], [*m.named_parameters(), *m.named_buffers()]
    assert [n for n, _ in mine] == [n for n, _ in theirs]
    for (_, a), (_, b) in zip(mine, theirs, strict=True):
        assert (type(a), a.dtype, a.shape, a.stride()) == (type(b), b.dtype, b.shape, b.stride())
        assert (a.storage_offset(), a.requires_grad, a.is_leaf) == (b.storage_offset(), b.requires_grad, b.is_leaf)


def test_nothing_is_copied() -> None:
    m = loaded(MODULES['scripted']())
    manifest, structure, files = write(m)
    for fd in files:
        os.close(fd)
    assert len(structure) < m.l.weight.nbytes
    assert sorted(n for n in [nbytes for _, nbytes, _, _ in manifest.storages]) == sorted([
        64 * 64 * 4, 64 * 4, 64 * 4, 10, 400, 256, 8,
    ])  # fmt: skip
    back = roundtrip(m)
    assert back.l.weight.data_ptr() == back.l2.weight.data_ptr()
    for t in (*back.parameters(), *back.buffers(), back.attribute, back.listed[0]):
        assert 'memfd:' in mapped(t.data_ptr())


def test_constants_of_graphs_are_mapped() -> None:
    back = roundtrip(loaded(MODULES['traced']()))
    found = [
        node.t('value')
        for node in back.inlined_graph.nodes()
        if node.kind() == 'prim::Constant' and node.hasAttribute('value') and node.kindOf('value') == 't'
    ]
    assert any('memfd:' in mapped(t.data_ptr()) and torch.equal(t, CONSTANT) for t in found if t.numel() == 64)


def test_writes_train_and_stay_private() -> None:
    m = loaded(MODULES['scripted']())
    manifest, structure, files = write(m)
    del manifest, structure
    before = [os.pread(fd, 1 << 20, 0) for fd in files]
    back = roundtrip(m)
    back.l.weight.requires_grad_(True)
    back(X.abs()).sum().backward()
    torch.optim.SGD(back.parameters(), 0.1).step()
    assert not torch.equal(back.l.weight, m.l.weight)
    assert torch.equal(roundtrip(m).l.weight, m.l.weight)
    assert before == [os.pread(fd, 1 << 20, 0) for fd in files]
    for fd in files:
        os.close(fd)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor, n: Optional[int] = None) -> torch.Tensor:  # noqa: UP045  TorchScript's own
        if n is not None:
            return torch.relu(x)
        return x


def test_a_graph_that_a_save_does_not_keep_is_refused() -> None:
    """As passes over graphs leave them: a branch on a constant, which reading the code takes away."""
    m = torch.jit.script(Branch())
    assert script.reduce(m)[0] is script.build
    n = list(m.graph.inputs())[2]
    constant = m.graph.insertConstant(0)
    constant.node().moveBefore(next(iter(m.graph.nodes())))
    n.replaceAllUsesWith(constant)
    with pytest.raises(Unpicklable, match='does not keep'):
        script.reduce(m)
    assert script.reduce(loaded(m))[0] is script.build


class Nms(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchvision.nms(x, x[:, 0], 0.5)


def test_operators_of_a_library_are_there_in_a_fresh_process(tmp_path: pathlib.Path) -> None:
    pytest.importorskip('torchvision')
    m = loaded(torch.jit.script(Nms()))
    function, arguments = script.reduce(m)
    assert function is script.build
    (tmp_path / 'x').write_bytes(pickle.dumps(arguments))
    line = 'import pickle, sys; from overmind.structure import script\n'
    line += 'print(script.build(*pickle.load(open(sys.argv[1], "rb"))))'
    run = subprocess.run([sys.executable, '-c', line, tmp_path / 'x'], capture_output=True, text=True, timeout=120)
    assert 'original_name=Nms' in run.stdout, run.stderr


def test_what_does_not_fit_is_saved_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    m = loaded(MODULES['scripted']())
    assert script.reduce(m)[0] is script.build
    whole = script.build
    monkeypatch.setattr(script, 'build', lambda archive, storages: whole(archive, storages).l)
    assert script.reduce(m)[0] is rebuild.script_module
    monkeypatch.undo()
    monkeypatch.delattr(torch._C, 'DeserializationStorageContext')
    function, arguments = script.reduce(m)
    assert function is rebuild.script_module
    assert content(function(*arguments)) == content(m)
