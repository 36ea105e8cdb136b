"""Everything that a user's function reaches counts: through class attributes, decorators, modules and their state."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from overmind.errors import Unkeyable
from overmind.key.code import fingerprint
from overmind.key.inputs import Recorder, check

Write = Callable[..., Any]

# A class attribute or a decorator, and what is changed in it.
REACHED = {
    'cached method': ('@functools.lru_cache\n    def f(self): return 1', 'return 1'),
    'cached static method': ('@staticmethod\n    @functools.cache\n    def f(): return 1', 'return 1'),
    'partial method': ('def g(self, x): return x\n    f = functools.partialmethod(g, 1)', '(g, 1)'),
    'method for each type': ('@functools.singledispatchmethod\n    def f(self, x): return 1', 'return 1'),
    'method without gradients': ('@torch.no_grad()\n    def f(self): return 1', 'return 1'),
    'method in inference mode': ('@torch.inference_mode()\n    def f(self): return 1', 'return 1'),
    'object of the standard library': ('f = datetime.timedelta(1)', '(1)'),
    'objects in containers': ("f = {'a': [datetime.timedelta(1)]}", '(1)'),
    'object with slots': ('f = Slotted(1)', '(1)'),
    'function in an object with slots': ('f = Slotted(lambda: 1)', ': 1'),
    'object of torch': ('f = torch.nn.Linear(1, 1).requires_grad_(False).eval().apply(fill(1))', 'fill(1)'),
    'random generator': ('f = torch.Generator().manual_seed(1)', '(1)'),
    'read-only dict': ("f = types.MappingProxyType({'a': 1})", ': 1'),
}
KINDS = """
import datetime, functools, torch, types
class Slotted:
    __slots__ = ('v',)
    def __init__(self, v): self.v = v
def fill(x):
    def to(m):
        for p in m.parameters(): torch.nn.init.constant_(p, x)
    return to
class A:
    {}
def make(): return A().f
"""


@pytest.mark.parametrize('name', REACHED)
def test_class_attributes(write: Write, name: str) -> None:
    body, part = REACHED[name]
    assert part in body
    source = KINDS.format(body)
    first = write(source).digest
    assert write(source).digest == first
    assert write(KINDS.format(body.replace(part, part.replace('1', '2')))).digest != first


def test_class_attributes_are_the_same_in_another_process(tmp_path: pathlib.Path) -> None:
    """The order of sets, addresses and whether the source was compiled or found compiled decide nothing."""
    bodies = [
        body.replace('f(', f'f{i}(', 1).replace('f =', f'f{i} =', 1) for i, (body, _) in enumerate(REACHED.values())
    ]
    bodies.append("words = {'some', 'words', 'in', 'a', 'set'}\n    held = Slotted({'more', 'of', 'these'})")
    (tmp_path / 'written.py').write_text(KINDS.format('\n    '.join(bodies)))
    program = 'import written, overmind.key.code as c; print(c.fingerprint(written.make).digest)'
    found = set()
    for seed in '12':
        path = os.pathsep.join((str(tmp_path), *sys.path))
        environment = {**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': path}
        environment.pop('PYTHONDONTWRITEBYTECODE', None)
        done = subprocess.run(
            [sys.executable, '-c', program], env=environment, check=True, capture_output=True, text=True
        )
        found.add(done.stdout)
    assert len(found) == 1, found


@pytest.mark.parametrize('value', ['(i for i in range(3))', 'bytearray(2 << 20)', 'torch.zeros(1 << 20)'])
def test_class_attribute_that_says_nothing_is_named(write: Write, value: str) -> None:
    with pytest.raises(Unkeyable, match='class attribute f'):
        write(KINDS.format(f'f = Slotted({value})'))


@pytest.mark.parametrize('decorator', ['torch.no_grad()', 'torch.no_grad', 'torch.inference_mode()'])
def test_decorators_of_torch(write: Write, decorator: str) -> None:
    source = f'import torch\n@{decorator}\ndef make(): return 1'
    assert write(source).digest == write(source).digest != write(source.replace('return 1', 'return 2')).digest


HELPER = """
import json, pathlib, types
RATE = json.loads(pathlib.Path(__file__).with_name('rate.json').read_text())
holder = types.SimpleNamespace(rate=1)
def f(): return RATE
class C:
    rate = 1
    def f(self): return RATE
"""
USES = {
    'function': ('import helper', 'helper.f()'),
    'class': ('import helper', 'helper.C().f()'),
    'in a lambda': ('import helper', '(lambda: helper.f())()'),
    'by another name': ('import helper', '[m.f() for m in [helper]]'),
    'of a package': ('import pack.helper', 'pack.helper.f()'),
    'from a package': ('from pack import helper', 'helper.f()'),
}


@pytest.mark.parametrize('use', USES)
def test_a_file_that_a_module_read_when_it_was_imported(write: Write, tmp_path: pathlib.Path, use: str) -> None:
    statement, call = USES[use]
    name = 'pack.helper' if 'pack' in statement else 'helper'
    more = {'pack.__init__': ''} if 'pack' in statement else {}
    found = []
    for rate in ('1', '1', '2'):
        place = tmp_path / ('pack' if more else '')
        place.mkdir(exist_ok=True)
        (place / 'rate.json').write_text(rate)
        found.append(write(f'{statement}\ndef make(): return {call}', **{name: HELPER}, **more).digest)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize('change', ['RATE = 5', 'holder.rate = 5', 'C.rate = 5', 'f = lambda: 5'])
def test_what_the_program_sets_in_a_module(write: Write, tmp_path: pathlib.Path, change: str) -> None:
    (tmp_path / 'rate.json').write_text('1')
    before = write(
        'import helper\ndef make(): return helper.f(), helper.C.rate, helper.holder.rate', helper=HELPER
    ).digest
    import user_code

    assert fingerprint(user_code.make).digest == before
    exec(change, vars(user_code.helper))
    assert fingerprint(user_code.make).digest != before


def test_a_module_in_a_closure(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / 'rate.json').write_text('1')
    source = 'def outer():\n    import helper\n    def make(): return helper.f()\n    return make\nmake = outer()'
    before = write(source, helper=HELPER).digest
    (tmp_path / 'rate.json').write_text('2')
    assert write(source, helper=HELPER).digest != before


@pytest.mark.parametrize('call', ['importlib.import_module', 'import_module', 'pkgutil.resolve_name'])
def test_a_loaded_module_that_is_imported_by_a_name_that_the_code_makes(
    write: Write, tmp_path: pathlib.Path, call: str
) -> None:
    """As instantiate_from_config does."""
    imports = 'import importlib, pkgutil, helper\nfrom importlib import import_module\n'
    helper = 'import helper2\ndef f(): return helper2.f()'
    write(f'{imports}def make(n): return {call}(n).f()', helper=helper, helper2='def f(): return 1')
    import user_code

    with Recorder() as r:
        assert user_code.make('helper') == 1
    assert not r.changed
    named = {os.path.basename(s.path) for s in r.sources()}
    assert named == {'helper.py', 'helper2.py'}
    (tmp_path / 'helper2.py').write_text('def f(): return 2')
    assert 'helper2.py: modified' in (check(r.sources(), r.listings()) or '')
    with Recorder() as r:
        user_code.make('helper')
    assert r.changed == 'module helper2 was edited after it was imported'


def test_a_module_that_makes_up_what_it_is_asked_for(write: Write) -> None:
    source = 'import helper\ndef make(): return helper.anything'
    first = write(source, helper='def __getattr__(name): return 1').digest
    assert write(source, helper='def __getattr__(name): return 2').digest != first
