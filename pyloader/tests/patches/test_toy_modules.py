"""The mechanics, on small packages that a test writes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

TOY = """
import functools
def load(path, *, flag=False):
    'Loads.'
    return ('real', path, flag)
class Base:
    @classmethod
    def from_pretrained(cls, name, **kwargs):
        return ('real', cls, name, kwargs)
    @staticmethod
    def make(name):
        return ('real', name)
    def fill(self, name):
        return ('real', self, name)
class Sub(Base):
    @classmethod
    def from_pretrained(cls, name, **kwargs):
        return super().from_pretrained(name, sub=True, **kwargs)
class Plain(Base):
    pass
class Thing:
    pass
number = 7
"""
POINTS = ['load', 'Base.from_pretrained', 'Base.make', 'Base.fill']


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / 'toy').mkdir()
    (tmp_path / 'toy/__init__.py').write_text('from toy.core import load, Base\n')
    (tmp_path / 'toy/core.py').write_text(TOY)
    configure(tmp_path, *POINTS)
    return tmp_path


def configure(folder: Path, *attributes: str) -> None:
    (folder / 'overmind.cfg').write_text('# points\n\n' + ''.join(f'toy.core::{a}\n' for a in attributes))


ORDERS = {
    'patched first': 'patches.monkey_patch_all()\nimport toy.core as core, toy\n',
    'imported first': 'import toy.core as core, toy\npatches.monkey_patch_all()\n',
}
each_order = pytest.mark.parametrize('order', ORDERS.values(), ids=ORDERS.keys())


@each_order
def test_calls_arrive_as_they_were_made(run, toy, order):
    run(
        order
        + """
import types
assert core.load('x', flag=True)[0] == 'cached'
fn, args, kwargs = calls.pop()
assert (args, kwargs) == (('x',), {'flag': True}) and fn('y') == ('real', 'y', False)
assert not isinstance(fn, types.MethodType) and fn is core.load.__wrapped__

assert core.Plain.from_pretrained('x', cls=1, owner=2)[0] == 'cached'
fn, args, kwargs = calls.pop()
assert isinstance(fn, types.MethodType) and fn.__self__ is core.Plain and kwargs == {'cls': 1, 'owner': 2}
assert fn('y') == ('real', core.Plain, 'y', {})

assert core.Sub.from_pretrained('x')[0] == 'cached'
fn, args, kwargs = calls.pop()
assert fn.__self__ is core.Sub and kwargs == {'sub': True}
assert fn('y') == ('real', core.Sub, 'y', {}) and not calls

assert core.Base.make('x')[0] == 'cached' and core.Base().make('x')[0] == 'cached'
assert calls.pop()[0] is core.Base.make.__wrapped__
base = core.Base()
assert base.fill('x')[0] == 'cached' and calls.pop()[0].__self__ is base
"""
    )


@each_order
def test_a_wrapper_looks_like_what_it_stands_for(run, toy, order):
    run(
        order
        + """
import inspect, pickle
assert core.load.__name__ == core.load.__qualname__ == 'load' and core.load.__module__ == 'toy.core'
assert core.load.__doc__ == 'Loads.' and str(inspect.signature(core.load)) == '(path, *, flag=False)'
assert str(inspect.signature(core.Base.from_pretrained)) == '(name, **kwargs)'
assert inspect.ismethod(core.Base.from_pretrained) and core.Base.from_pretrained.__wrapped__
for fn in core.load, core.Plain.from_pretrained, core.Sub.from_pretrained, core.Base.make:
    assert pickle.loads(pickle.dumps(fn)) == fn
assert isinstance(vars(core.Base)['make'], staticmethod) and 'from_pretrained' not in vars(core.Plain)
"""
    )


@each_order
def test_unwrapped(run, toy, order):
    run(
        order
        + """
import functools, types
assert patches.unwrapped(core.load) is core.load.__wrapped__
fn = patches.unwrapped(core.Plain.from_pretrained)
assert isinstance(fn, types.MethodType) and fn.__self__ is core.Plain
assert fn.__func__ is vars(core.Base)['from_pretrained'].__func__.__wrapped__
assert patches.unwrapped(core.Base.make) is core.Base.make.__wrapped__
@functools.wraps(core.load)
def outer(*args): return core.load(*args)
for other in outer, len, core.Thing, core.Sub.from_pretrained, functools.partial(core.load, 1), 7:
    assert patches.unwrapped(other) is other or patches.unwrapped(other) == other
copy = types.FunctionType(core.load.__code__, core.load.__globals__, closure=core.load.__closure__)
assert patches.unwrapped(copy) is core.load.__wrapped__
"""
    )


def test_unpatching_restores_every_attribute(run, toy):
    run("""
import toy.core as core, toy
def state():
    return {(o, k): id(v) for o in (core, toy, core.Base, core.Sub, core.Plain) for k, v in vars(o).items()
            if k[:2] != '__'}
before = state()
for _ in range(2):
    patches.monkey_patch_all()
    patched = state()
    patches.monkey_patch_all()
    assert state() == patched != before and patched.keys() == before.keys()
    held, method = core.load, core.Sub.from_pretrained
    assert held(1)[0] == 'cached'
    patches.unpatch_all()
    patches.unpatch_all()
    assert state() == before
    calls.clear()
    assert held(1) == ('real', 1, False) and method(2)[0] == 'real' and not calls
""")


def test_imports_after_unpatching_are_left_alone(run, toy):
    run("""
patches.monkey_patch_all()
patches.unpatch_all()
import toy.core as core
assert core.load(1)[0] == 'real' and not hasattr(core.load, '__wrapped__')
""")


def test_an_import_that_was_under_way_when_unpatching(run, toy):
    (toy / 'toy/core.py').write_text('from overmind import patches\npatches.unpatch_all()\n' + TOY)
    run('patches.monkey_patch_all()\nimport toy.core as core\nassert not hasattr(core.load, "__wrapped__")')


def test_an_import_that_was_under_way_when_patching(run, toy):
    (toy / 'toy/core.py').write_text('from overmind import patches\npatches.monkey_patch_all()\n' + TOY)
    (toy / 'toy/late.py').write_text('def load(): pass\n')
    with open(toy / 'overmind.cfg', 'a') as f:
        f.write('toy.late::load\n')
    out = run("""
import toy.core as core
import toy.late
assert core.load(1)[0] == 'cached' and core.Plain.from_pretrained(1)[0] == 'cached'
""")
    assert 'not patched' not in out


def test_somebody_elses_wrapper_over_ours_is_kept(run, toy):
    run("""
patches.monkey_patch_all()
import toy.core as core
inner = core.load
core.load = outer = lambda *a: inner(*a)
patches.unpatch_all()
assert core.load is outer and outer(1)[0] == 'real'
""")


def test_reloaded_module(run, toy):
    run("""
import importlib
patches.monkey_patch_all()
import toy.core as core
importlib.reload(core)
assert core.load(1)[0] == 'real'
patches.monkey_patch_all()
assert core.load(1)[0] == 'cached'
patches.unpatch_all()
assert core.load(1)[0] == 'real' and not hasattr(core.load, '__wrapped__')
""")


def test_module_that_replaces_itself(run, toy):
    (toy / 'toy/core.py').write_text(
        TOY
        + """
import sys, types
class Lazy(types.ModuleType):
    def __getattr__(self, name):
        if name != 'load': raise AttributeError(name)
        self.load = load
        return load
lazy = Lazy(__name__)
lazy.__dict__.update({k: v for k, v in globals().items() if k[:2] == '__' or k == 'Base'})
sys.modules[__name__] = lazy
"""
    )
    run("""
patches.monkey_patch_all()
import toy.core as core
assert type(core).__name__ == 'Lazy' and core.load(1)[0] == 'cached' and core.Base.make(1)[0] == 'cached'
""")


def test_inherited_method(run, toy):
    configure(toy, 'Plain.from_pretrained')
    run("""
patches.monkey_patch_all()
import toy.core as core
assert core.Plain.from_pretrained(1)[0] == 'cached' and core.Base.from_pretrained(1)[0] == 'real'
patches.unpatch_all()
assert 'from_pretrained' not in vars(core.Plain)
""")


@pytest.mark.parametrize('env', [{'OVERMIND_DISABLE': '1'}, {'OVERMIND_ROOT': ''}], ids=['disabled', 'no root'])
def test_off(run, toy, env):
    run(
        """
import os
patches.monkey_patch_all()
import toy.core as core
assert core.load(1)[0] == 'real' and core.Plain.from_pretrained(1)[0] == 'real' and not calls
os.environ.update(OVERMIND_DISABLE='0', OVERMIND_AUTOSTART='1')
assert core.load(1)[0] == 'cached'
""",
        **env,
    )


def test_names_that_cannot_be_patched_are_warned_about(run, toy):
    configure(toy, 'missing', 'Missing.load', 'Base.missing', 'Thing', 'number')
    out = run('patches.monkey_patch_all()\nimport toy.core as core\nassert core.Thing() and core.number == 7')
    for name in ('missing', 'Missing.load', 'Base.missing', 'Thing', 'number'):
        assert f'overmind.cfg: toy.core::{name} is not patched' in out


def test_threads_that_import_at_once(run, toy):
    run("""
import threading, importlib
patches.monkey_patch_all()
seen = []
def work():
    seen.append(importlib.import_module('toy.core').load(1)[0])
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert seen == ['cached'] * 8
""")


def test_nothing_is_imported(run):
    run("""
before = set(sys.modules)
patches.monkey_patch_all()
new = {n.partition('.')[0] for n in set(sys.modules) - before}
assert not new & {'torch', 'transformers', 'diffusers', 'safetensors', 'tomllib', 'timm', 'numpy'}, new
""")


def test_our_own_modules_come_with_the_first_library(run, toy):
    run("""
patches.monkey_patch_all()
assert 'overmind.restore' not in sys.modules
import toy.core
assert 'overmind.restore' in sys.modules
""")
