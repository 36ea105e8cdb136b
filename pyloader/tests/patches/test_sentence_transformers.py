"""The constructor of SentenceTransformer, with a real tiny model and a real cache."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import overmind

if importlib.util.find_spec('sentence_transformers') is None:
    pytest.skip('sentence-transformers is not installed', allow_module_level=True)

SOURCES = Path(overmind.__file__).parents[1]
MAKE = """
import sys, torch, transformers
folder = sys.argv[1]
words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'cat', 'dog', '##s', 'the', *map(chr, range(98, 123))]
with open(folder + '/vocab.txt', 'w') as f:
    f.write('\\n'.join(words))
transformers.BertTokenizer(folder + '/vocab.txt').save_pretrained(folder)
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64)
torch.manual_seed(0)
transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
"""
PATCHED_FIRST = """
import overmind.api as o
o.monkey_patch_all()
from sentence_transformers import SentenceTransformer
"""
IMPORTED_FIRST = """
import overmind.api as o
from sentence_transformers import SentenceTransformer
o.monkey_patch_all()
"""
USE = """
import copy, inspect, pickle, sys
path = sys.argv[1]

def make(*args, **kwargs):
    return SentenceTransformer(*args or (path,), **{'device': 'cpu', **kwargs})

def numbers(model):
    return model.encode(['the cats', 'a dog']).tolist()

def counts():
    s = o.stats()
    return s.hits, s.misses, s.bypasses
"""
each_order = pytest.mark.parametrize('order', [PATCHED_FIRST, IMPORTED_FIRST], ids=['patched first', 'imported first'])


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('model') / 'tiny'
    folder.mkdir()
    _python(MAKE, folder, folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, model: Path):
    (tmp_path / 'root').mkdir()
    return lambda script, **env: _python(textwrap.dedent(script), tmp_path, model, **env)


def _python(script: str, home: Path, model: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, '-c', script, str(model)],
        cwd=home,
        env={
            'PATH': os.environ['PATH'],
            'HOME': str(home),
            'PYTHONPATH': os.pathsep.join([str(SOURCES), os.environ.get('PYTHONPATH', '')]),
            'OVERMIND_ROOT': str(home / 'root'),
            'OVERMIND_STRICT': '1',
            'HF_HUB_OFFLINE': '1',
            'CUDA_VISIBLE_DEVICES': '',
            **env,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PRINT = """
model = make()
print(counts(), *(load.id.rpartition('-')[0] for load in o.stats().loads))
print(numbers(model), type(model), inspect.signature(SentenceTransformer), model.model_card_data.model is model)
"""


@pytest.fixture(scope='module')
def plain(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[str]:
    script = 'import overmind.api as o\nfrom sentence_transformers import SentenceTransformer\n' + USE + PRINT
    return _python(script, tmp_path_factory.mktemp('plain'), model).splitlines()


@each_order
def test_miss_then_hit(run, plain, order):
    assert plain[0] == '(0, 0, 0)'
    for counted in '(0, 1, 0)', '(1, 0, 0)':
        assert run(order + USE + PRINT).splitlines() == [f'{counted} SentenceTransformer-tiny', *plain[1:]]


def test_what_comes_from_the_cache_is_an_object_like_any(run):
    out = run(
        PATCHED_FIRST
        + USE
        + """
make()
model = make()
assert counts() == (1, 1, 0)
assert type(model) is SentenceTransformer and isinstance(model, SentenceTransformer) and model is not make()
assert counts() == (2, 1, 0)
expected = numbers(model)
for other in copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model)):
    assert type(other) is SentenceTransformer and other is not model and numbers(other) == expected
for protocol in range(2, 6):
    assert numbers(pickle.loads(pickle.dumps(model, protocol))) == expected
again = SentenceTransformer(modules=list(model), device='cpu')
assert numbers(again) == expected and again[0] is model[0]
assert counts()[:2] == (2, 1)       # the pickled tensors are loads of their own, which cannot be cached
empty = SentenceTransformer.__new__(SentenceTransformer)
assert not vars(empty)
empty.__init__(path, device='cpu')      # as the library does it itself: its parts come through the cache
assert numbers(empty) == expected
print('done')
"""
    )
    assert out.splitlines()[-1] == 'done'


def test_subclasses_are_not_cached_as_a_whole(run):
    run(
        PATCHED_FIRST
        + USE
        + """
class Own(SentenceTransformer):
    def __init__(self, *args, extra, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra

own = Own(path, device='cpu', extra=7)
assert own.extra == 7 and type(own) is Own
assert 'SentenceTransformer' not in ' '.join(load.id for load in o.stats().loads)
assert numbers(own) == numbers(make()) == numbers(copy.deepcopy(own))
o.unpatch_all()
assert numbers(Own(path, device='cpu', extra=7)) == numbers(own)
"""
    )


def test_unpatched(run):
    run(
        """
from sentence_transformers import SentenceTransformer
before = dict(vars(SentenceTransformer))
"""
        + IMPORTED_FIRST
        + USE
        + """
expected = numbers(make())
model = make()
assert vars(SentenceTransformer)['__init__'] is not before['__init__'] and counts() == (1, 1, 0)
for _ in range(2):
    o.unpatch_all()
    after = dict(vars(SentenceTransformer))
    # Where the interpreter cannot forget it, a __new__ that only drops the arguments.
    new = after.pop('__new__', None)
    assert new is None or new.__func__.__qualname__ == 'bare.<locals>.__new__', new
    assert {k: v for k, v in after.items() if before.get(k) is not v} == {} and after.keys() == before.keys()
    assert numbers(make()) == expected == numbers(SentenceTransformer(model_name_or_path=path, device='cpu'))
    assert numbers(pickle.loads(pickle.dumps(model))) == numbers(copy.deepcopy(model)) == expected
    assert counts()[1] == 1
    o.monkey_patch_all()
    hits = counts()[0]
    assert numbers(make()) == expected and counts() == (hits + 1, 1, 0)
"""
    )


def test_disabled_later(run):
    run(
        PATCHED_FIRST
        + USE
        + """
import os
expected = numbers(make())
os.environ['OVERMIND_DISABLE'] = '1'
assert numbers(make()) == expected and counts() == (0, 1, 0)
"""
    )


def test_asked_for_by_name_it_is_the_same_entry(run):
    run(
        PATCHED_FIRST
        + USE
        + """
expected = numbers(o.load(SentenceTransformer, path, device='cpu'))
assert counts() == (0, 1, 0)
assert numbers(make()) == expected == numbers(o.load(SentenceTransformer, path, device='cpu'))
assert counts() == (2, 1, 0)
o.unpatch_all()
assert numbers(o.load(SentenceTransformer, path, device='cpu')) == expected and counts() == (3, 1, 0)
"""
    )


def test_inside_another_load(run):
    run(
        PATCHED_FIRST
        + USE
        + """
def pair(path):
    return [SentenceTransformer(path, device='cpu'), SentenceTransformer(path, device='cpu', truncate_dim=8)]
a, b = o.load(pair, path)
assert counts() == (0, 1, 0) and len(numbers(b)[0]) == 8
o.load(pair, path)
assert counts() == (1, 1, 0)
"""
    )


def test_an_exception_of_the_library_comes_once(run):
    run(
        PATCHED_FIRST
        + USE
        + """
from pathlib import Path
tried = []
original = SentenceTransformer._load_modules
def counted(self, *args, **kwargs):
    tried.append(args)
    return original(self, *args, **kwargs)
SentenceTransformer._load_modules = counted
Path('broken').mkdir()
Path('broken/modules.json').write_text('[{"idx": 0, "name": "0", "path": "", "type": "nowhere.Nothing"}]')
try:
    make('broken')
except Exception as e:
    assert type(e).__module__.partition('.')[0] != 'overmind', e
else:
    raise AssertionError('no exception')
assert len(tried) == 1 and counts() == (0, 0, 0)
"""
    )


def test_filled_in_another_process(run):
    run(PATCHED_FIRST + USE + 'make(); make()\nassert counts() == (1, 1, 0)\n', OVERMIND_FILL='subprocess')
