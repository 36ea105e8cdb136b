"""Objects that stock pickling gets wrong come back as they were; those that cannot are refused."""

from __future__ import annotations

import collections
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundtrip import roundtrip, write
from torch import nn

from overmind.errors import CorruptEntry, Unpicklable
from overmind.references import References, Registry
from overmind.structure import unpickle


class Tagged(nn.Parameter):
    """As bitsandbytes does it: a Parameter whose facts are attributes."""


def test_parameter_subclass_keeps_class_attributes_and_flags() -> None:
    p = Tagged(torch.ones(3), requires_grad=False)
    p.quant_state = {'absmax': torch.arange(3.0)}
    q = roundtrip([p])[0]
    assert type(q) is Tagged
    assert not q.requires_grad
    assert torch.equal(q.quant_state['absmax'], torch.arange(3.0))


def test_attributes_of_a_plain_parameter() -> None:
    """As transformers leaves them on every Parameter: its row of the table is used, and nothing is lost."""
    p = nn.Parameter(torch.arange(4.0), requires_grad=False)
    p._is_hf_initialized, p.scale, p.flags = True, torch.ones(2), {'a': [p.data]}  # type: ignore[attr-defined]
    view = p.data[1:]
    view.mark = 'x'  # type: ignore[attr-defined]
    first = {'p': p, 'again': [p], 'scale': p.scale, 'view': view}  # type: ignore[attr-defined]
    manifest, structure, files = write(first)
    for fd in files:
        os.close(fd)
    assert len(manifest.tensors) == 4
    assert b'attributed' in structure
    back = roundtrip(first)
    q = back['p']
    assert type(q) is nn.Parameter
    assert not q.requires_grad
    assert vars(q).keys() == vars(p).keys()
    assert q._is_hf_initialized is True
    assert back['again'][0] is q
    assert back['scale'] is q.scale
    assert back['view'].mark == 'x'
    q.data.fill_(7)
    assert torch.equal(back['view'], torch.full((3,), 7.0))
    assert torch.equal(q.flags['a'][0], torch.full((4,), 7.0))


def test_what_is_almost_a_whole_storage() -> None:
    whole = torch.arange(6, dtype=torch.int16)
    odd = torch.arange(7, dtype=torch.uint8)[:6].view(torch.int16)
    one = torch.ones(1).as_strided((1,), (5,))
    made = [whole, whole[:3], whole[::2], whole[1:], whole.view(torch.uint8), odd, one, torch.ones(0), torch.ones(4, 0)]
    made += [nn.Parameter(t.float().detach().clone()) for t in made]
    for before, after in zip(made, roundtrip(made), strict=True):
        assert (type(after), after.dtype, after.shape) == (type(before), before.dtype, before.shape)
        assert (after.stride(), after.storage_offset()) == (before.stride(), before.storage_offset())
        assert after.untyped_storage().nbytes() == before.untyped_storage().nbytes()
        assert torch.equal(after, before)
        assert after.is_leaf
        assert after._base is None


class Counted(nn.Linear):
    """Something of its own is to happen when its attributes come back."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.restored = True


def test_modules_get_their_attributes() -> None:
    parent = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    parent.note, parent[0].above = 'here', [parent]
    parent[0].own = vars(parent[0])
    parent[1].register_forward_hook(str, prepend=True)
    older = nn.ReLU()
    del older._backward_pre_hooks  # of a torch that had none
    back = roundtrip({'parent': parent, 'counted': Counted(1, 1), 'older': older})
    again = back['parent']
    assert list(vars(again)) == list(vars(parent))
    assert again.note == 'here'
    assert again[0].above[0] is again
    assert again[0].own['_parameters'] is again[0]._parameters
    assert list(again[1]._forward_hooks.values()) == [str]
    assert vars(again[0]) is not vars(parent[0])
    assert back['counted'].restored
    assert back['older']._backward_pre_hooks == {}
    assert back['older'](torch.ones(1)) == 1
    again[0].extra = 1
    assert not hasattr(parent[0], 'extra')
    again.load_state_dict(parent.state_dict())


class Ordered(collections.OrderedDict[str, int]):
    pass


def test_ordered_dicts() -> None:
    marked = collections.OrderedDict(a=1)
    marked.mark = [marked]  # type: ignore[attr-defined]
    filled = collections.OrderedDict.fromkeys('cab')
    back = roundtrip([filled, collections.OrderedDict(), marked, Ordered(z=1, a=2), filled])
    assert list(map(type, back)) == list(map(type, [filled, filled, marked, Ordered(), filled]))
    assert list(back[0]) == ['c', 'a', 'b']
    assert back[4] is back[0]
    back[0].move_to_end('c')
    assert list(reversed(back[0])) == ['c', 'b', 'a']
    back[1]['x'] = 1
    assert back[1].popitem() == ('x', 1)
    assert back[2].mark[0] is back[2]
    assert list(back[3].items()) == [('z', 1), ('a', 2)]


def test_gradients_bits_and_requires_grad() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 7.0)
    z = torch.randn(3, dtype=torch.complex64)
    made = [p, torch.ones(3, requires_grad=True), z.conj(), z.conj().imag]
    back = roundtrip(made)
    assert torch.equal(back[0].grad, p.grad)
    assert back[1].requires_grad
    assert back[1].is_leaf
    assert back[2].is_conj()
    assert torch.equal(back[2], made[2])
    assert back[3].is_neg()
    assert torch.equal(back[3], made[3])


@pytest.mark.parametrize('name', ['float8_e8m0fnu', 'float4_e2m1fn_x2', 'uint16', 'uint32', 'complex128', 'bool'])
def test_rare_dtypes(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f'this torch has no {name}')
    t = torch.arange(16, dtype=torch.uint8).view(getattr(torch, name))
    back = roundtrip([t])[0]
    assert back.dtype == t.dtype
    assert torch.equal(back.view(torch.uint8), t.view(torch.uint8))


def test_identity_aliases_and_empty_storages() -> None:
    m = nn.Linear(2, 2)
    e = torch.empty(0, 3)
    a, b, c, d, f = roundtrip([m, m, m.weight, m.weight.data, e])
    assert a is b
    assert c is a.weight
    assert d.data_ptr() == c.data_ptr()
    assert f.shape == (0, 3)


def test_hidden_states_of_a_model_whose_class_was_never_constructed() -> None:
    transformers = pytest.importorskip('transformers')
    modeling = pytest.importorskip('transformers.modeling_utils')
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9
    )
    model = transformers.LlamaModel(config).eval()
    dict.clear(modeling._CAN_RECORD_REGISTRY)  # as in a new process
    loaded = roundtrip(model)
    states = [m(input_ids=torch.arange(4)[None], output_hidden_states=True).hidden_states for m in (loaded, model)]
    assert len(states[0]) == 2
    assert all(map(torch.equal, *states))


def test_sparse_quantized_and_meta() -> None:
    q = torch.quantize_per_tensor(torch.arange(4.0), 0.1, 3, torch.qint8)
    s, back, m = roundtrip([torch.eye(3).to_sparse(), q, torch.empty(2, device='meta')])
    assert torch.equal(s.to_dense(), torch.eye(3))
    assert torch.equal(back.int_repr(), q.int_repr())
    assert back.q_scale() == q.q_scale()
    assert m.device.type == 'meta'


def test_locks_weak_references_generators_and_threads() -> None:
    m = nn.Linear(1, 1)
    gone = weakref.ref(nn.Linear(1, 1))
    made = {'lock': threading.Lock(), 'r': threading.RLock(), 'local': threading.local()}
    made.update(m=m, ref=weakref.ref(m), gone=gone)
    made['weak'] = weakref.WeakKeyDictionary({m: 1})
    made['g'] = torch.Generator().manual_seed(5)
    back = roundtrip(made)
    assert back['ref']() is back['m']
    assert back['gone']() is None
    assert back['weak'][back['m']] == 1
    assert back['lock'].acquire(blocking=False)
    expected = torch.randn(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(torch.randn(3, generator=back['g']), expected)


def test_bound_forward_and_closure_hooks() -> None:
    m, scale = nn.Linear(2, 2), 3.0
    m.register_forward_hook(lambda mod, i, o: o * scale)

    def forward(self: Any, x: Any) -> Any:
        return x + 1

    m.forward = types.MethodType(forward, m)
    back = roundtrip(m)
    assert back.forward.__self__ is back
    assert torch.equal(back(torch.ones(2)), torch.full((2,), 6.0))


@pytest.mark.parametrize('norm', ['prune', 'weight_norm', 'spectral_norm', 'parametrized'])
def test_recomputed_weights(norm: str) -> None:
    from torch.nn import utils
    from torch.nn.utils import prune

    torch.manual_seed(0)
    m = nn.Linear(4, 4)
    if norm == 'prune':
        prune.l1_unstructured(m, 'weight', 0.5)
    elif norm == 'parametrized':
        m = utils.parametrizations.weight_norm(m)
    else:
        m = getattr(utils, norm)(m)
    m.eval()
    back = roundtrip(m)
    x = torch.ones(1, 4)
    assert torch.equal(back.weight, m.weight)
    assert back.weight.is_leaf == m.weight.is_leaf
    assert torch.equal(back(x), m(x))
    back(x).sum().backward()


@pytest.mark.parametrize(
    'make',
    [
        lambda: open(__file__),  # noqa: SIM115
        lambda: (i for i in range(3)),
        lambda: torch.ones(3, requires_grad=True) * 2,
        lambda: nn.Sequential(torch.jit.script(nn.Linear(2, 2))),
        lambda: torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module(),
    ],
)
@pytest.mark.filterwarnings('ignore')
def test_what_would_come_back_nearly_right_is_refused(make: Any) -> None:
    with pytest.raises(Unpicklable):
        roundtrip([make()])


def test_inference_tensors_are_refused() -> None:
    with torch.inference_mode():
        t = torch.ones(2)
    with pytest.raises(Unpicklable, match='inference'):
        roundtrip([t])


def test_a_class_of_main_is_the_scripts_own_and_else_a_copy(tmp_path: Any) -> None:
    """In a fresh process: the script's class of that name, or the one in the stream."""
    source = textwrap.dedent("""
        import pickle, sys, io
        sys.path[:0] = sys.argv[3:]
        import torch
        from torch import nn
        {define}
        from overmind.structure.pickler import dumps
        from overmind.structure.table import Table
        from overmind.structure.unpickle import loads
        if sys.argv[1] == 'write':
            data, _ = dumps(make(), Table(), ({{}}, {{}}))
            open(sys.argv[2], 'wb').write(data)
        else:
            back = loads(open(sys.argv[2], 'rb').read(), {{}}.__getitem__, {{}})
            own = globals().get('Net')
            print(type(back) is own, back.go(3), type(back).self_name())
    """)
    define = """
class Net:
    def go(self, n): return n if n == 0 else type(self).base() + self.__class__().go(n - 1)
    @staticmethod
    def base(): return helper(1)
    @classmethod
    def self_name(cls): return super(Net, cls).__new__(Net).__class__.__name__
def helper(y): return y + 1
make = Net
"""
    with_class, without = tmp_path / 'a.py', tmp_path / 'b.py'
    with_class.write_text(source.format(define=define))
    without.write_text(source.format(define=''))
    data = str(tmp_path / 'x')

    def run(script: Any, what: str) -> str:
        return subprocess.run(
            [sys.executable, script, what, data, *sys.path], check=True, capture_output=True, text=True
        ).stdout.strip()

    run(with_class, 'write')
    assert run(with_class, 'read') == 'True 6 Net'
    assert run(without, 'read') == 'False 6 Net'


def test_a_local_class_is_left_alone_in_the_process_that_wrote_it() -> None:
    class Local:
        def names(self) -> Any:
            return globals()

    before = Local.names
    back = roundtrip([Local(), Local])
    assert type(back[0]) is back[1]
    assert back[1] is not Local
    assert back[1].__qualname__ == Local.__qualname__
    assert Local.names is before
    assert Local().names() is globals()


def test_references_stand_for_the_callers_own_objects() -> None:
    registry = Registry()
    vae = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    registry.add(vae, 'vae-1')
    refs = References(registry, {'vae': vae})
    pipe = {'vae': vae, 'layer': vae[0], 'weight': vae[0].weight, 'mean': vae[1].running_mean, 'own': nn.Linear(1, 1)}
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    registry.add(other, 'vae-1')
    from roundtrip import write

    from overmind.entries import OpenEntry
    from overmind.manifest import decode
    from overmind.manifest.encode import encode
    from overmind.restore import restore

    manifest, structure, files = write(pipe, refs)
    entry = OpenEntry(decode(encode(manifest)), structure, files, 0)
    back = restore(entry, References(registry, {'vae': other}), {})
    entry.close()
    assert back['vae'] is other
    assert back['layer'] is other[0]
    assert back['weight'] is other[0].weight
    assert back['mean'] is other[1].running_mean
    with pytest.raises(CorruptEntry):
        restore(OpenEntry(manifest, structure, [], 0), References(registry, {}), {}) if not manifest.arenas else (
            unpickle.loads(structure, _missing, {})
        )


def _missing(pid: Any) -> Any:
    raise CorruptEntry(f'{pid}')


def test_a_view_of_an_arguments_memory_is_refused() -> None:
    registry = Registry()
    vae = nn.Linear(2, 2)
    registry.add(vae, 'vae-1')
    with pytest.raises(Unpicklable, match='argument'):
        roundtrip([vae.weight.data[:1]], References(registry, {'vae': vae}))


def test_an_index_that_is_not_there_is_corrupt() -> None:
    from overmind.restore import _Objects

    look = _Objects([(2, torch.ones(1))], [torch.UntypedStorage(1)], References(Registry(), {})).__getitem__
    assert look(1).nbytes() == 1
    for pid in (-1, 0, 3, 5, 'x', ('a',), (('vae',), 'm:x'), None):
        with pytest.raises(CorruptEntry):
            look(pid)


def test_module_files_are_found_again(tmp_path: Any) -> None:
    """A folder with a dot in its name, relative imports, a fresh process."""
    package = tmp_path / 'transformers_modules_x' / 'my-repo.v1'
    package.mkdir(parents=True)
    (package / 'helper.py').write_text('K = 5\n')
    (package / 'code.py').write_text('from .helper import K\nclass Thing:\n    k = K\n')
    name = 'transformers_modules_x.my-repo.v1.code'
    data = pickle.dumps(3)
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from overmind.structure.modules import import_from
        import_from('transformers_modules_x.my-repo.v1.helper', {str(package / 'helper.py')!r})
        import_from({name!r}, {str(package / 'code.py')!r})
        print(sys.modules[{name!r}].Thing.k)
    """)
    assert data
    out = subprocess.run([sys.executable, '-c', script], check=True, capture_output=True, text=True).stdout
    assert out.strip() == '5'


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def trees(draw: Any) -> Any:
    bases = [
        torch.arange(n).to(draw(st.sampled_from(DTYPES)))
        for n in draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    ]

    def view(i: int, how: int) -> torch.Tensor:
        b = bases[i % len(bases)]
        n = b.numel()
        return [
            b,
            b[n // 2 :],
            b[::3],
            b[: n // 2 * 2].reshape(-1, 2).t() if n > 1 else b,
            b[:1].expand(3, 1) if n else b,
        ][how]

    leaf = st.builds(view, st.integers(0, 3), st.integers(0, 4)) | st.integers() | st.text(max_size=4) | st.none()
    return draw(
        st.recursive(
            leaf,
            lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text(max_size=3), c, max_size=4) | st.tuples(c, c),
            max_leaves=12,
        )
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        facts = lambda t: (type(t), t.dtype, t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes())  # noqa: E731
        return facts(a) == facts(b) and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def storages(o: Any) -> list[int]:
    """For each tensor in order, the number of the first tensor with the same storage."""
    seen: dict[int, int] = {}
    out: list[int] = []

    def walk(x: Any) -> None:
        if isinstance(x, torch.Tensor):
            key = x.untyped_storage()._cdata
            out.append(seen.setdefault(key, len(seen)))
        elif isinstance(x, dict):
            for v in x.values():
                walk(v)
        elif isinstance(x, (list, tuple)):
            for v in x:
                walk(v)

    walk(o)
    return out


@settings(max_examples=60, deadline=None)
@given(trees())
def test_nested_containers_of_views_come_back(tree: Any) -> None:
    back = roundtrip(tree)
    assert same(tree, back)
    assert storages(tree) == storages(back)


class Slotted(nn.Module):
    __slots__ = ('extra',)


def test_what_torch_would_lose_of_a_module() -> None:
    m = Slotted()
    assert type(roundtrip(m)) is Slotted
    m.extra = 5
    with pytest.raises(Unpicklable, match='extra in __slots__'):
        roundtrip(m)


def test_gradient_hooks_and_shared_memory_are_refused() -> None:
    p = nn.Parameter(torch.ones(2))
    p.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(Unpicklable, match='hook'):
        roundtrip([p])
    with pytest.raises(Unpicklable, match='shared memory'):
        roundtrip([torch.ones(3).share_memory_()])
