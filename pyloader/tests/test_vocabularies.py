"""The vocabulary of a transformers tokenizer that is written in Python, unpickled when somebody asks for it."""

from __future__ import annotations

import collections
import copy
import io
import json
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from overmind.references import _state  # noqa: E402
from overmind.structure import vocabularies  # noqa: E402
from overmind.structure.later import Later, restored_by_dict  # noqa: E402
from overmind.structure.pickler import Pickler  # noqa: E402
from overmind.structure.table import Table  # noqa: E402
from overmind.structure.unpickle import loads  # noqa: E402

Base = transformers.PreTrainedTokenizer
WAITING = {'encoder', 'decoder', 'ranks', 'fix'}


class Words(Base):  # type: ignore[misc, valid-type]
    """Words by number, with the attributes that CLIP's has; a class of the library for these tests."""

    def __init__(self, count: int = 2000) -> None:
        self.encoder = {f'w{n}': n for n in range(count)}
        self.decoder = collections.OrderedDict((n, w) for w, n in self.encoder.items())
        self.ranks = {('w', str(n)): n for n in range(count)}
        self.small = {'a': 1}
        self.fix = json.dumps
        super().__init__(unk_token='w0')

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.encoder)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.encoder.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.decoder[index]


class Own(Words):
    """Of the user's."""


def through(obj: Any) -> Any:
    out = io.BytesIO()
    Pickler(out, Table(), ({}, {}), obj).dump(obj)
    return loads(out.getvalue(), lambda pid: pytest.fail(f'{pid}'), {})


def waiting(obj: Any) -> set[str]:
    return {name for name, value in vars(obj).items() if type(value) is vocabularies.Part}


@pytest.fixture(params=[Words, Own])
def original(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(vocabularies, '_LIBRARY', __name__)
    monkeypatch.setattr(Own, '__module__', 'own')
    monkeypatch.setattr(sys.modules[__name__], 'Own', Own)
    monkeypatch.setitem(sys.modules, 'own', sys.modules[__name__])
    yield request.param()
    for name, value in list(vars(Words).items()):
        if type(value) is Later or name == '__getattr__':
            delattr(Words, name)


def test_is_there_when_it_is_used(original: Any) -> None:
    back = through(original)
    assert vocabularies._host(type(original)) is Words
    assert waiting(back) == WAITING
    assert list(vars(back)) == list(vars(original))
    assert back('w3 w5').input_ids == original('w3 w5').input_ids == [3, 5]
    assert waiting(back) < WAITING
    assert type(vars(back)['encoder']) is dict
    assert back.decode([3, 5]) == original.decode([3, 5])
    assert type(back.decoder) is collections.OrderedDict
    assert (back.encoder, back.decoder, back.ranks, back.fix) == (
        original.encoder,
        original.decoder,
        original.ranks,
        json.dumps,
    )
    assert not waiting(back)


def test_others_of_the_class_are_as_they_were(original: Any) -> None:
    through(original)
    other = Words(1500)
    assert other.vocab_size == 1500
    assert type(vars(other)['encoder']) is dict
    other.encoder = {'x': 1}
    assert vars(other)['encoder'] == {'x': 1}
    del other.encoder
    assert not hasattr(other, 'encoder')
    with pytest.raises(AttributeError, match='encoder'):
        other.get_vocab()
    with pytest.raises(AttributeError):
        del other.encoder
    with pytest.raises(AttributeError, match='encoder'):
        Words.encoder  # noqa: B018


def test_can_be_set_and_deleted_before_it_was_used(original: Any) -> None:
    back = through(original)
    back.encoder = {'w7': 7}
    assert back('w7').input_ids == [7]
    del back.ranks
    assert not hasattr(back, 'ranks')
    assert back.decoder == original.decoder


@pytest.mark.parametrize('used', [False, True])
@pytest.mark.parametrize('how', [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), through])
def test_copies_and_pickles(original: Any, how: Any, used: bool) -> None:
    back = through(original)
    if used:
        back.encoder['new'] = 99
    again = how(back)
    assert again('w3 new').input_ids == ([3, 99] if used else [3, 0])
    assert again.decoder == original.decoder
    assert again.fix is json.dumps
    assert list(vars(again)) == list(vars(original))
    assert back.encoder == {**original.encoder, **({'new': 99} if used else {})}


def test_pickle_for_a_process_without_this_package(original: Any) -> None:
    assert b'overmind.structure' not in pickle.dumps(through(original))


def test_what_others_refer_to_does_not_wait(original: Any) -> None:
    original.again = original.encoder
    back = through(original)
    assert waiting(back) == WAITING - {'encoder'}
    assert back.again is back.encoder
    outside = [original.decoder]
    assert waiting(through(original)) == WAITING - {'encoder', 'decoder'}
    del original.again, outside
    assert waiting(through(original)) == WAITING


def test_what_is_not_simple_does_not_wait(original: Any) -> None:
    original.ranks['small'] = original.small
    back = through(original)
    assert waiting(back) == WAITING - {'ranks'}
    assert back.ranks['small'] is back.small


def test_own_function_does_not_wait(original: Any) -> None:
    original.fix = lambda text: text
    back = through(original)
    assert waiting(back) == WAITING - {'fix'}
    assert back.fix('a') == 'a'


def test_attribute_of_a_class_does_not_wait(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, 'ranks', None, raising=False)
    back = through(original)
    assert waiting(back) == WAITING - {'ranks'}
    assert back.ranks == original.ranks


def test_class_that_got_the_attribute_since(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    Pickler(out, Table(), ({}, {}), original).dump(original)
    monkeypatch.setattr(Words, 'ranks', None, raising=False)
    back = loads(out.getvalue(), lambda pid: pytest.fail(f'{pid}'), {})
    assert waiting(back) == WAITING - {'ranks'}
    assert back.ranks == original.ranks


def test_package_that_is_gone_is_missed_at_once(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    Pickler(out, Table(), ({}, {}), original).dump(original)
    monkeypatch.delitem(sys.modules, 'json')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="'json'"):
        loads(out.getvalue(), lambda pid: pytest.fail(f'{pid}'), {})


def test_large_one_is_a_storage(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('overmind.structure.later.LARGE', 1)
    out, table = io.BytesIO(), Table()
    Pickler(out, table, ({}, {}), original).dump(original)
    assert b'w1999' not in out.getvalue()
    (storage,) = list(table.storages)
    back = loads(out.getvalue(), lambda pid: storage, {})
    assert waiting(back) == WAITING
    assert back('w1999').input_ids == [1999]


def test_use_is_no_change_of_an_argument(original: Any) -> None:
    back = through(original)
    before = _state(back)
    assert back.encoder['w3'] == 3
    assert _state(back) == before
    back.encoder['w3'] = 4
    assert _state(back) != before


class Loading(Words):
    """As Marian's: what cannot be pickled is loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), 'model': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.model = 'loaded again'


def test_own_setstate_is_called() -> None:
    back = through(Loading())
    assert back.model == 'loaded again'
    assert not waiting(back)


@pytest.mark.parametrize('name', ['MarianTokenizer', 'M2M100Tokenizer'])
def test_tokenizers_that_load_something(name: str) -> None:
    cls = getattr(transformers, name, None)
    if cls is None:
        pytest.skip(f'this version has no {name}')
    assert vocabularies.is_tokenizer(cls)
    assert not restored_by_dict(cls)


def test_class_behind_the_one_of_the_library(original: Any) -> None:
    class Mixin:
        encoder = 'of the mixin'

        @property
        def ranks(self) -> str:
            return f'of {type(self).__name__}'

    class Both(Words, Mixin):
        def __init__(self) -> None:
            pass

    through(original)
    both = object.__new__(Both)
    assert both.encoder == 'of the mixin'
    assert both.ranks == 'of Both'
    assert Both.encoder == 'of the mixin'
    both.encoder = ()
    assert both.encoder == ()


def test_many_threads_get_one(original: Any) -> None:
    back, found = through(original), []
    threads = [threading.Thread(target=lambda: found.append(back.encoder)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(one) for one in found}) == 1


def test_object_that_only_looks_like_one() -> None:
    class Other:
        def __init__(self) -> None:
            self.encoder = {str(n): n for n in range(2000)}

    assert not vocabularies.is_tokenizer(Other)
    assert not vocabularies.is_tokenizer(Base)
    assert through(Other()).encoder == Other().encoder
