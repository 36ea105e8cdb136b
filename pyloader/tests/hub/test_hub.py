"""Models by hub name, from a local cache of the hub: commits, refs, blobs, and no network on a hit."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

import pytest

transformers = pytest.importorskip('transformers')

FOLDER = os.path.dirname(__file__)

BUILD = """
import pathlib, sys, torch
from transformers import BertConfig, BertModel, BertTokenizer
folder = pathlib.Path(sys.argv[1])
config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                    max_position_embeddings=8)
for seed in (1, 2, 3):
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(folder / str(seed))
    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'one', 'two', 'three', f'seed{seed}']
    (folder / 'vocab.txt').write_text('\\n'.join(words) + '\\n')
    BertTokenizer(str(folder / 'vocab.txt')).save_pretrained(folder / str(seed))
"""

START = """
import json, os, pathlib, shutil, sys
sys.path.insert(0, sys.argv[1])
from layout import Repository
from overmind.api import explain, monkey_patch_all, stats
import torch
from transformers import AutoModel, AutoTokenizer
monkey_patch_all()
built, hub = pathlib.Path(sys.argv[2]), pathlib.Path(os.environ['HF_HOME']) / 'hub'
repository = Repository(hub, 'org/name')
A, B = 'a' * 40, 'b' * 40
log = []

def model(**kwargs):
    m = AutoModel.from_pretrained('org/name', **kwargs).eval()
    note(m(torch.arange(5)[None]).last_hidden_state.double().sum().item())

def tokenizer(**kwargs):
    t = AutoTokenizer.from_pretrained('org/name', **kwargs)
    note(t('one two seed1 seed2')['input_ids'])

def note(value):
    last = stats().loads[-1]
    log.append([last.outcome, value, last.reason])
"""
END = '\nprint(json.dumps([log, len(stats().loads)]))'


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('built')
    subprocess.run([sys.executable, '-c', BUILD, str(folder)], check=True, timeout=300, capture_output=True)
    return folder


class Runner:
    """Scripts that share one hub cache and one root, each in a process of its own."""

    def __init__(self, folder: pathlib.Path, built: pathlib.Path) -> None:
        self._folder, self._built = folder, built
        (folder / 'root').mkdir()

    def __call__(self, script: str, **env: str) -> list[list[Any]]:
        done = subprocess.run(
            [sys.executable, '-c', START + textwrap.dedent(script) + END, FOLDER, str(self._built)],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith(('HF_', 'HUGGINGFACE_', 'TRANSFORMERS_'))},
                'HF_HOME': str(self._folder / 'hf'),
                'OVERMIND_ROOT': str(self._folder / 'root'),
                'OVERMIND_STRICT': '1',
                **env,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        log, count = json.loads(done.stdout.splitlines()[-1])
        assert len(log) == count, 'a load inside a load was counted'
        found: list[list[Any]] = log
        return found


@pytest.fixture
def run(tmp_path: pathlib.Path, built: pathlib.Path) -> Runner:
    return Runner(tmp_path, built)


def outcomes(log: list[list[Any]]) -> list[str]:
    return [entry[0] for entry in log]


def test_commits_refs_and_blobs(run: Runner, built: pathlib.Path) -> None:
    log = run(
        """
        repository.commit(built / '1', A, 'main', 'v1')
        repository.commit(built / '2', B, 'v2')
        model(); model()
        model(revision='v1'); model(revision='v1')  # the same commit under another name
        model(revision=A); model(revision=A)
        model(revision='v2'); model(revision='v2')
        repository.ref('main', B)
        model(); model()
        model(revision='v1'); model(revision=A); model(revision='v2')  # main has nothing to do with them
        repository.ref('v1', B)
        model(revision='v1')
        repository.ref('main', A)
        model()
        """,
        HF_HUB_OFFLINE='1',
    )
    first, other = log[0][1], log[6][1]
    assert first != other
    assert [entry[1] for entry in log] == [*[first] * 6, *[other] * 4, first, first, other, other, first]
    # Under another name it is another entry: libraries keep the name of the revision in some results.
    # Version 4 looks for an adapter in main, whatever revision is asked for.
    other_main = 'miss' if transformers.__version__.startswith('4.') else 'hit'
    assert outcomes(log) == [*['miss', 'hit'] * 5, *[other_main] * 3, 'miss', 'miss']
    # The new commit under an old name had its refs among its files; the entry of the old one had them, too.
    assert log[14][2].endswith('refs/main: modified')


def test_a_blob_changed_in_place(run: Runner) -> None:
    log = run(
        """
        repository.commit(built / '1', A, 'main')
        repository.commit(built / '2', B)
        model(); model()
        blob = repository.blob(A, 'model.safetensors')
        before = blob.stat()
        blob.write_bytes(repository.blob(B, 'model.safetensors').read_bytes())
        assert blob.stat().st_size == before.st_size
        os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
        said = explain(AutoModel.from_pretrained, 'org/name')
        assert said.outcome == 'miss' and 'model.safetensors' in said.reason, said
        model(); model()
        model(revision=B)
        """,
        HF_HUB_OFFLINE='1',
    )
    assert outcomes(log) == ['miss', 'hit', 'miss', 'hit', 'miss']
    assert log[0][1] == log[1][1] != log[2][1] == log[3][1] == log[4][1]


def test_tokenizer_and_keywords(run: Runner) -> None:
    log = run(
        """
        repository.commit(built / '1', A, 'main')
        tokenizer(); tokenizer()
        AutoTokenizer.from_pretrained(pretrained_model_name_or_path='org/name'); note(None)
        repository.commit(built / '2', B, 'main')
        tokenizer(); tokenizer()
        model()
        AutoModel.from_pretrained(pretrained_model_name_or_path='org/name'); note(None)
        """,
        HF_HUB_OFFLINE='1',
    )
    assert outcomes(log) == ['miss', 'hit', 'hit'] + ['miss', 'hit'] * 2
    assert log[0][1] == log[1][1] != log[3][1] == log[4][1]


def test_no_network_on_a_hit(run: Runner) -> None:
    filled = run("repository.commit(built / '1', A, 'main'); model(); tokenizer()", HF_HUB_OFFLINE='1')
    log = run("""
        import socket
        touched = []

        def refuse(*args, **kwargs):
            touched.append(args)
            raise OSError('no network here')

        for name in ('connect', 'connect_ex', 'sendto'):
            setattr(socket.socket, name, refuse)
        socket.getaddrinfo = socket.create_connection = refuse
        assert not __import__('huggingface_hub').constants.HF_HUB_OFFLINE
        model(); tokenizer()
        assert touched == [], touched
        import contextlib, huggingface_hub
        with contextlib.suppress(Exception):
            huggingface_hub.model_info('org/name')
        assert touched, 'the check itself would see it'
    """)
    assert outcomes(log) == ['hit', 'hit']
    assert [entry[1] for entry in log] == [entry[1] for entry in filled]


def test_a_miss_asks_the_network_for_what_a_plain_load_does(run: Runner) -> None:
    """A cached repository whose server cannot be reached: as many attempts, for the same, and the same weights."""
    script = """
        import socket
        touched = []

        def refuse(*args, **kwargs):
            touched.append([str(a) for a in args if not isinstance(a, socket.socket)])
            raise OSError('no network here')

        for name in ('connect', 'connect_ex', 'sendto'):
            setattr(socket.socket, name, refuse)
        socket.getaddrinfo = socket.create_connection = refuse
        __import__('time').sleep = lambda seconds: None  # between attempts, for more than half a minute
        m = AutoModel.from_pretrained('org/name').eval()
        weights = m(torch.arange(5)[None]).last_hidden_state.double().sum().item()
        outcome = stats().loads[-1].outcome if stats().loads else 'plain'
        print(json.dumps([[[outcome, touched, weights]], 1]))
        sys.exit()
    """
    run("repository.commit(built / '1', A, 'main')", HF_HUB_OFFLINE='1')
    (plain,), (missed,) = run(script, OVERMIND_DISABLE='1'), run(script)
    assert (plain[0], missed[0]) == ('plain', 'miss')
    assert plain[1], 'a plain load asks, so this can fail'
    assert missed[1:] == plain[1:]


def test_a_repository_that_is_fetched_by_the_load(run: Runner) -> None:
    """The commit is unknown before the load: the entry gets the key that the next load has."""
    log = run(
        """
        import huggingface_hub, transformers.utils.hub
        real = transformers.utils.hub.cached_files

        def fetch(*args, **kwargs):
            if not repository.path.exists():
                repository.commit(built / '1', A, 'main')
            return real(*args, **kwargs)

        for module in [m for n, m in list(sys.modules.items()) if n.startswith('transformers.')]:
            if vars(module).get('cached_files') is real:
                module.cached_files = fetch
        said = explain(AutoModel.from_pretrained, 'org/name')
        assert said.outcome == 'miss' and 'not in the local cache of the hub' in said.reason, said
        model(); model()
        assert explain(AutoModel.from_pretrained, 'org/name').outcome == 'hit'
        """,
        HF_HUB_OFFLINE='1',
    )
    assert outcomes(log) == ['miss', 'hit']
    assert log[0][1] == log[1][1]
