"""Equal values have equal bytes, different values different ones, and what has no meaning elsewhere is refused."""

import collections
import dataclasses
import enum
import functools
import io
import math
import os
import pathlib
import re
import struct
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overmind.errors import Unkeyable
from overmind.key.canonical import Encoder, no_reference


def enc(value, reference=no_reference):
    return Encoder(reference).encode(value)


def same(a, b):
    """Equality as the encoding understands it: by type, floats by their bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack('<d', a) == struct.pack('<d', b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        left, right = ([(k, v) for k, v in d.items()] for d in (a, b))
        return len(left) == len(right) and all(any(same(k, x) and same(v, y) for x, y in right) for k, v in left)
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return a == b


ATOMS = st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
HASHABLE = st.recursive(ATOMS, lambda s: st.tuples(s, s) | st.frozensets(s, max_size=2), max_leaves=4)
VALUES = st.recursive(
    HASHABLE,
    lambda s: st.lists(s, max_size=3) | st.tuples(s) | st.dictionaries(HASHABLE, s, max_size=3) | st.sets(HASHABLE),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_equal_iff_equal(a, b):
    assert (enc(a) == enc(b)) == same(a, b)


@given(st.lists(VALUES, max_size=3), st.lists(VALUES, max_size=3))
def test_concatenation_is_injective(a, b):
    assert (b''.join(map(enc, a)) == b''.join(map(enc, b))) == same(a, b)


@given(st.dictionaries(st.text(max_size=4), st.integers()))
def test_dict_order_matters(d):
    """A loader may build modules in the order of a dict."""
    assert (enc(d) == enc(dict(reversed(d.items())))) == (len(d) < 2)


DIFFERENT = [1, 1.0, True, '1', b'1', (1,), [1], {1}, frozenset({1}), {1: 1}, 0.0, -0.0, 1j, None, '', (), slice(1),
             range(1), math.inf, [[], []], [[[]]], ['ab', 'c'], ['a', 'bc'], [1, [2]], [[1], 2], ...]  # fmt: skip


def test_pairwise_different():
    assert len({enc(v) for v in DIFFERENT}) == len(DIFFERENT)


def test_nan_is_a_value():
    assert enc(math.nan) == enc(math.nan)


def test_ordered_dict_keeps_order():
    a = collections.OrderedDict(a=1, b=2)
    assert enc(a) != enc(collections.OrderedDict(b=2, a=1))


def test_paths(tmp_path, monkeypatch):
    (tmp_path / 'm').mkdir()
    monkeypatch.chdir(tmp_path)
    forms = ['m', './m', 'm/', str(tmp_path / 'm'), pathlib.Path('m'), tmp_path / 'm']
    assert len({enc(f) for f in forms}) == 1
    encoder = Encoder(no_reference)
    encoder.encode(['m', 'org/name', {'k': tmp_path / 'm'}])
    assert encoder.paths == [str(tmp_path / 'm')] * 2
    assert encoder.names == ['org/name', 'k']
    assert enc('absent') != enc(pathlib.Path('absent'))
    assert enc('a\0b') != enc('a')
    assert enc('x' * 5000)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Options:
    size: int
    inner: object = None


Point = collections.namedtuple('Point', 'x y')


class Settings:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_objects():
    values = [
        Color.RED, Color.BLUE, Flags.A, Flags.A | Flags.B, Options(1), Options(2), Options(1, Options(1)), Point(1, 2),
        (1, 2), Settings(a=1), Settings(a=2), types.SimpleNamespace(a=1), functools.partial(int, base=2),
        functools.partial(int, 2), re.compile('a'), re.compile('a', re.I), re.compile(b'a'), int, str, len,
        os.path.join, dict.fromkeys, [].append.__class__, Settings, Settings(a=Settings(a=1)),
    ]  # fmt: skip
    found = [enc(v) for v in values]
    assert len(set(found)) == len(values)
    assert found == [enc(v) for v in values]


def test_cached_objects_are_tokens():
    a, b = [1], [1]
    tokens = {id(a): 'entry-a', id(b): 'entry-b'}

    def reference(o):
        return tokens.get(id(o))

    assert enc([a], reference) != enc([b], reference)
    assert enc({'x': a}, reference) == enc({'x': a}, reference)


def looped():
    loop = []
    loop.append({'x': loop})
    return loop


def deep(n):
    value = 1
    for _ in range(n):
        value = [value]
    return value


@pytest.mark.parametrize(
    'value', [(i for i in ()), os, object(), io.StringIO(), looped(), deep(101), deep(100_000), memoryview(b'')]
)
def test_refused(value):
    with pytest.raises(Unkeyable):
        enc(value)


def test_depth_100_is_kept():
    assert enc(deep(100))


def test_message_names_the_place():
    with pytest.raises(Unkeyable, match=r"argument x\[1\]\['k'\]: the Python module os cannot"):
        Encoder(no_reference).encode([1, {'k': os}], 'argument x')


def test_siblings_may_be_the_same_object():
    a = [1]
    assert enc([a, a]) == enc([[1], [1]])
