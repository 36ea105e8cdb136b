"""A transformers tokenizer whose Rust one is built when somebody asks for it."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

tokenizers = pytest.importorskip('tokenizers')
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from roundtrip import roundtrip, write  # noqa: E402

from overmind.errors import Unpicklable  # noqa: E402
from overmind.references import _state  # noqa: E402
from overmind.structure import later  # noqa: E402
from overmind.structure.pickler import Pickler  # noqa: E402
from overmind.structure.table import Table  # noqa: E402
from overmind.structure.unpickle import loads  # noqa: E402

Fast = transformers.PreTrainedTokenizerFast
HOST = later._host(Fast)
WORDS = ['l', 'o', 'w', 'er', 'e', 'r', 'lo', 'low', 'lower', '<unk>']
MERGES = [('e', 'r'), ('l', 'o'), ('lo', 'w'), ('low', 'er')]


def bpe() -> Any:
    t = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={w: i for i, w in enumerate(WORDS)}, merges=MERGES, unk_token='<unk>')
    )
    t.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return t


def word_level() -> Any:
    model = tokenizers.models.WordLevel({'lower': 0, 'low': 1, '<unk>': 2}, unk_token='<unk>')
    t = tokenizers.Tokenizer(model)
    t.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return t


def through(obj: Any) -> Any:
    out = io.BytesIO()
    Pickler(out, Table(), ({}, {}), obj).dump(obj)
    return loads(out.getvalue(), lambda pid: pytest.fail(f'{pid}'), {})


def waits(obj: Any) -> bool:
    return type(vars(obj)['_tokenizer']) is later.Pending


@pytest.fixture(params=[bpe, word_level])
def original(request: pytest.FixtureRequest) -> Iterator[Any]:
    before = vars(HOST).get('_tokenizer', later)
    yield Fast(tokenizer_object=request.param(), unk_token='<unk>')
    if before is later:
        if '_tokenizer' in vars(HOST):
            del HOST._tokenizer
    else:
        HOST._tokenizer = before


def test_is_built_when_it_is_used(original: Any) -> None:
    back = through(original)
    assert waits(back)
    assert list(vars(back)) == list(vars(original))
    assert back('low lower').input_ids == original('low lower').input_ids
    assert not waits(back)
    assert type(vars(back)['_tokenizer']) is tokenizers.Tokenizer
    assert back._tokenizer is back.backend_tokenizer
    assert back.backend_tokenizer.to_str() == original.backend_tokenizer.to_str()


def test_a_large_one_is_kept_in_an_arena(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all processes share it, and nobody reads it before its first use."""
    monkeypatch.setattr(later, 'LARGE', 1)
    manifest, structure, files = write([original])
    for fd in files:
        os.close(fd)
    assert [s[1] > 100 for s in manifest.storages] == [True]
    assert b'lower' not in structure.replace(b'lowercase', b'')
    back, again, _ = roundtrip([original, copy.copy(original), {'beside': torch.ones(3)}])
    assert type(vars(back)['_tokenizer'].data) is torch.UntypedStorage
    assert waits(again)
    copied = pickle.loads(pickle.dumps(again))
    gc.collect()
    for found in (back, copied):
        assert found('low lower').input_ids == original('low lower').input_ids
        assert found.backend_tokenizer.to_str() == original.backend_tokenizer.to_str()
        assert not waits(found)


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_are_those_of_the_real_one(original: Any, copied: Any) -> None:
    back = through(original)
    other = copied(back)
    assert type(vars(other)['_tokenizer']) is tokenizers.Tokenizer
    assert other('low').input_ids == back('low').input_ids
    assert other.backend_tokenizer is not back.backend_tokenizer


def test_pickles_need_nothing_of_ours(original: Any) -> None:
    assert b'overmind' not in pickle.dumps(through(original))


def test_use_is_no_change_of_an_argument(original: Any) -> None:
    back = through(original)
    before = _state(back)
    back.tokenize('low')
    assert _state(back) == before
    back.padding_side = 'left'
    assert _state(back) != before


def test_shallow_copies_share_it(original: Any) -> None:
    back = through(original)
    other = copy.copy(back)
    assert other.backend_tokenizer is back.backend_tokenizer


def test_whoever_shares_it_still_does(original: Any) -> None:
    twin = Fast(tokenizer_object=bpe(), unk_token='<unk>')
    twin._tokenizer = original._tokenizer
    back, other, itself = through([original, twin, original._tokenizer])
    assert back._tokenizer is other._tokenizer is itself
    assert type(itself) is tokenizers.Tokenizer


def test_a_result_of_the_cache_can_be_cached_again(original: Any) -> None:
    again = through(through(original))
    assert again('lower low').input_ids == original('lower low').input_ids


def test_all_threads_get_one(original: Any) -> None:
    back = through(original)
    found: list[Any] = []
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        found.append(back._tokenizer)

    threads = [threading.Thread(target=use) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len({id(t) for t in found}) == 1


def test_other_tokenizers_are_as_ever(original: Any) -> None:
    through(original)
    fresh = Fast(tokenizer_object=bpe(), unk_token='<unk>')
    assert fresh('lower').input_ids == [8]
    fresh._tokenizer = replaced = word_level()
    assert fresh._tokenizer is replaced
    assert fresh('lower').input_ids == [0]
    del fresh._tokenizer
    assert '_tokenizer' not in vars(fresh)
    with pytest.raises(AttributeError):
        del fresh._tokenizer
    empty = object.__new__(Fast)
    assert getattr(empty, '_tokenizer', None) is None
    assert getattr(Fast, '_tokenizer', None) is None


class Own(Fast):  # type: ignore[misc, valid-type]
    """A class of the user's that keeps the attribute itself is left alone."""

    _tokenizer = None


def test_class_that_keeps_the_attribute_itself() -> None:
    own = Own(tokenizer_object=bpe(), unk_token='<unk>')
    assert not later.postponable(Own)
    back = through(own)
    assert type(vars(back)['_tokenizer']) is tokenizers.Tokenizer
    assert json.loads(back._tokenizer.to_str()) == json.loads(own._tokenizer.to_str())


def test_pending_for_such_a_class_is_built_at_once() -> None:
    back = object.__new__(Own)
    later.set_state(back, {'_tokenizer': later.Pending.of(bpe()), 'x': 1})
    assert type(vars(back)['_tokenizer']) is tokenizers.Tokenizer
    assert back.x == 1


def test_what_cannot_be_pickled_is_refused() -> None:
    class Mine:
        pass

    t = bpe()
    t.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Mine())
    with pytest.raises(Exception, match=r'[Cc]ustom'):
        later.Pending.of(t)


def with_own_decode(t: Any) -> None:
    """As transformers does to CLIP's: only this object has it, and its pickle does not."""
    usual, suffix = t.decode, 'r'

    def decode(*args: Any, **kwargs: Any) -> str:
        return str(usual(*args, **kwargs)).replace(suffix, '!')

    t.decode = decode


def test_what_is_set_on_a_rust_tokenizer_comes_back(original: Any) -> None:
    with_own_decode(original._tokenizer)
    original._tokenizer.note = {'kept': [1, 2]}
    ids = original('low lower').input_ids
    back = through(original)
    assert waits(back)
    assert back.decode(ids) == original.decode(ids)
    assert '!' in back.decode(ids)
    assert back._tokenizer.note == {'kept': [1, 2]}
    assert list(vars(back._tokenizer)) == list(vars(original._tokenizer))
    # The function calls the method of the restored tokenizer, not that of another one.
    back._tokenizer.add_tokens(['new'])
    assert back.decode([len(back) - 1]) == 'new'
    itself = through(original._tokenizer)
    assert itself.decode(ids) == original._tokenizer.decode(ids)


def test_what_is_set_on_a_rust_tokenizer_and_leads_back_is_refused(original: Any) -> None:
    original._tokenizer.owner = original
    with pytest.raises(Unpicklable, match='that of transformers'):
        through(original)


@pytest.mark.skipif(int(transformers.__version__.partition('.')[0]) < 5, reason='another class, with the same method')
def test_clip_decodes_as_without_the_cache() -> None:
    words = ['l', 'o', 'w', 'l</w>', 'o</w>', 'w</w>', 'lo', 'low</w>', '<|startoftext|>', '<|endoftext|>']
    t = transformers.CLIPTokenizer(vocab={w: i for i, w in enumerate(words)}, merges=[('l', 'o'), ('lo', 'w</w>')])
    ids = t('low low').input_ids
    back = through(t)
    assert back.decode(ids) == t.decode(ids)
    assert '</w>' not in back.decode(ids)
    assert back.batch_decode([ids], skip_special_tokens=True) == ['low low']
