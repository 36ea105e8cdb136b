"""A user's function: what it does counts, where and how it is written does not."""

import copy
import sys
import textwrap

import pytest

from overmind.errors import Unkeyable
from overmind.key.code import fingerprint

BASE = """
    import os
    from functools import lru_cache, wraps
    RATE = 2
    def double(x):
        return x * RATE
    class Base:
        kind = 'a'
        def go(self): return double(1)
    class Net(Base):
        @property
        def width(self): return 3
    def decorate(f):
        @wraps(f)
        def wrapper(*a): return f(*a)
        return wrapper
    @decorate
    def inner(path, scale=2): return os.path.join(path, str(scale)), Net().go()
    def make(path, *, deep=1):
        def local(): return inner(path)
        return [local() for _ in range(3)], (lambda: deep + 4)
    def unrelated(): return 1
"""

CHANGED = [
    ('RATE = 2', 'RATE = 3'), ('x * RATE', 'x + RATE'), ("kind = 'a'", "kind = 'b'"), ('return 3', 'return 4'),
    ('scale=2', 'scale=3'), ('deep=1', 'deep=2'), ('range(3)', 'range(4)'), ('deep + 4', 'deep + 5'),
    ('return f(*a)', 'return f(*a), 1'), ('class Net(Base)', 'class Net'), ('os.path.join', 'os.path.split'),
    ('double(1)', 'double(2)'),
]  # fmt: skip
UNCHANGED = [
    ('RATE = 2', '# a comment\n\n\n    RATE = 2'), ('def unrelated(): return 1', 'def unrelated(): return 2'),
    ('def unrelated(): return 1', ''), ('deep + 4', 'deep  +  4'), ('import os\n', 'import os, json\n'),
]  # fmt: skip


@pytest.mark.parametrize(('old', 'new'), CHANGED)
def test_changed(write, old, new):
    assert old in BASE
    assert write(BASE).digest != write(BASE.replace(old, new)).digest


@pytest.mark.parametrize(('old', 'new'), UNCHANGED)
def test_unchanged(write, old, new):
    assert old in BASE
    assert write(BASE).digest == write(BASE.replace(old, new)).digest


def test_moved_local_class(write):
    source = 'def make():\n    class A:\n        x = 1\n        def f(self): return 2\n    return A\n'
    moved = write('\n' * 400 + source).digest
    assert write(source).digest == moved != write(source.replace('x = 1', 'x = 3')).digest
    assert write(source.replace('return 2', 'return 9')).digest != moved


@pytest.mark.parametrize('statement', ['import helper', 'from helper import value', 'from pack import helper'])
@pytest.mark.parametrize('local', [True, False])
def test_imported_module(write, statement, local):
    name = 'pack.helper' if 'pack' in statement else 'helper'
    use = 'value' if 'value' in statement else 'helper.value'
    inside = f'def make():\n    {statement}\n    return {use}()'
    top = inside if local else f'{statement}\ndef make(): return {use}()'
    more = {'pack.__init__': ''} if 'pack' in statement else {}
    first = write(top, **{name: 'def value(): return 1'}, **more)
    again = write(top, **{name: 'def value(): return 1'}, **more)
    other = write(top, **{name: 'def value(): return 2'}, **more)
    assert first.digest == again.digest != other.digest
    assert any(f.endswith('helper.py') for f in first.files)


def test_modules_of_modules(write):
    top = 'import helper\ndef make(): return helper.value()'
    helper = 'def value():\n    import helper2\n    return helper2.N'
    assert write(top, helper=helper, helper2='N = 1').digest != write(top, helper=helper, helper2='N = 2').digest


def test_loaded_or_not_is_the_same(write):
    top = 'def make():\n    import helper\n    return helper.value()'
    first = write(top, helper='def value(): return 1')
    import user_code

    assert 'helper' not in sys.modules
    user_code.make()
    assert 'helper' in sys.modules
    assert fingerprint(user_code.make).digest == first.digest


def test_relative_imports(write):
    files = {'pack.__init__': '', 'pack.helper': 'def value(): return 1'}
    main = 'from pack.entry import make'
    local = {'pack.entry': 'def make():\n    from .helper import value\n    return value()'}
    first = write(main, **files, **local)
    files['pack.helper'] = 'def value(): return 2'
    assert first.digest != write(main, **files, **local).digest


def test_edited_after_import_is_refused(write, tmp_path):
    write('import helper\ndef make(): return helper.value()', helper='def value(): return 1')
    (tmp_path / 'helper.py').write_text('def value(): return 2')
    import user_code

    with pytest.raises(Unkeyable, match='helper was edited after it was imported'):
        fingerprint(user_code.make)


def test_cycles(write):
    source = """
        class Node:
            def make(self): return make()
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        def make(): return even(4), Node, make
        table = [make, even, odd]
    """
    assert write(source).digest != write(source.replace('n != 0', 'n > 0')).digest
    assert write(source).digest == write(source).digest


def test_closures_are_told_apart(write):
    source = """
        def scaled(k):
            def f(x): return x * k
            return f
        steps = [scaled(1), scaled(2)]
        def make(x): return [s(x) for s in steps]
    """
    assert write(source).digest != write(source.replace('[scaled(1), scaled(2)]', '[scaled(2), scaled(1)]')).digest


def test_lenient_globals(write):
    write("""
        import logging, threading, typing
        from os import environ
        log, lock, T = logging.getLogger('x'), threading.RLock(), typing.TypeVar('T')
        Alias = typing.Optional[int]
        def make(x: Alias) -> T:
            with lock: log.info('%s %s %s', x, environ, T, Alias)
    """)


def test_kinds_of_classes(write):
    source = """
        import abc, collections, dataclasses, enum, typing
        @dataclasses.dataclass(frozen=True)
        class Data:
            a: int = 1
            b: list = dataclasses.field(default_factory=list)
        class Color(enum.Enum):
            RED = 1
            def shade(self): return 5
        Point = collections.namedtuple('Point', 'x y', defaults=[7])
        class Shape(abc.ABC, typing.Generic[typing.TypeVar('T')]):
            @abc.abstractmethod
            def f(self): return 6
            @staticmethod
            def s(): return 8
            @classmethod
            def c(cls): return 9
        class Slots:
            __slots__ = ('q',)
            def f(self): return super().__repr__()
        def make(): return Data(), Color.RED, Point(1), Shape, Slots
    """
    first = write(source).digest
    assert write(source).digest == first
    for old, new in [('a: int = 1', 'a: int = 2'), ('RED = 1', 'RED = 2'), ('return 5', 'return 0'),
                     ('[7]', '[8]'), ('return 6', 'return 0'), ('return 8', 'return 0'), ('return 9', 'return 0'),
                     ("('q',)", "('r',)"), ('factory=list', 'factory=dict')]:  # fmt: skip
        assert write(source.replace(old, new)).digest != first, old


def test_unencodable_global_is_named(write):
    with pytest.raises(Unkeyable, match='global numbers: an object of type generator cannot be compared'):
        write('numbers = (i for i in range(3))\ndef make(): return next(numbers)')


def test_running_does_not_change_it(write):
    digest = write(BASE).digest
    import user_code

    for _ in range(200):  # specialises the bytecode
        user_code.make('x')
    from overmind.key import bytecode

    bytecode._statics.clear()
    assert fingerprint(user_code.make).digest == digest


def test_copying_an_instance_does_not_change_it(write):
    digest = write('class Thing:\n    pass\ndef make(): return Thing()').digest
    import user_code

    copy.copy(user_code.make())  # leaves __slotnames__ in the class, as pickling does
    assert fingerprint(user_code.make).digest == digest


def test_lambda_and_library():
    assert fingerprint(lambda: 1).digest != fingerprint(lambda: 2).digest
    assert fingerprint(textwrap.dedent).files == []


def test_large_package_counts_as_a_whole(write, tmp_path, monkeypatch):
    from overmind.key import trees

    monkeypatch.setattr(trees, 'LARGE', 2)
    files = {'pack.__init__': 'from .helper import value', 'pack.helper': 'def value(): return 1', 'pack.more': ''}
    trees.digest.cache_clear()
    first = write('from pack import value\ndef make(): return value()', **files)
    assert not any('/pack/' in f for f in first.files)
    (tmp_path / 'pack' / 'more.py').write_text('x = 1')
    trees.digest.cache_clear()
    import user_code

    assert fingerprint(user_code.make).digest != first.digest
    trees.digest.cache_clear()
