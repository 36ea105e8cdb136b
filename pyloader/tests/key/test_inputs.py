"""Files that loads read are recorded however they are opened, and every change to them is seen."""

import os
import subprocess
import sys
import threading
import time

import pytest

from overmind.key import folders, inputs
from overmind.key.inputs import Recorder, check, note


def paths(recorder):
    return [s.path for s in recorder.sources()]


def rewrite(path, data=None):
    """New bytes, same size, inode and modification time: only ctime tells."""
    before = os.stat(path)
    with open(path, 'r+b') as f:
        old = f.read()
        f.seek(0)
        f.write(data or bytes(255 - b for b in old))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_python_open(tmp_path):
    file = tmp_path / 'a.bin'
    file.write_bytes(b'abc')
    with Recorder() as r:
        file.read_bytes()
        with open(tmp_path / 'made', 'w') as f:
            f.write('x')
        (tmp_path / 'made').read_bytes()
        os.close(os.open(tmp_path, os.O_RDONLY))
        with pytest.raises(FileNotFoundError):
            (tmp_path / 'absent').read_bytes()
        open('/proc/self/stat').close()
        open(os.__file__).close()
    assert paths(r) == [str(file), str(tmp_path / 'absent')]
    assert not r.changed
    assert r.listings() == []
    assert check(r.sources(), r.listings()) is None
    rewrite(file)
    assert check(r.sources(), r.listings()) == f'{file}: modified'
    file.unlink()
    assert 'No such file' in check(r.sources(), r.listings())


def test_changed_during_the_load(tmp_path):
    file = tmp_path / 'a'
    file.write_bytes(b'abc')
    with Recorder() as r:
        file.read_bytes()
        rewrite(file)
    assert 'modified during the load' in r.changed
    with Recorder() as r:
        file.read_bytes()
        file.unlink()
    assert 'removed during the load' in r.changed


def test_fresh_file_is_read_only_when_its_change_would_show(tmp_path):
    for i in range(20):
        file = tmp_path / str(i)
        file.write_bytes(b'abc')
        with Recorder() as r:
            file.read_bytes()
        rewrite(file)
        assert check(r.sources(), ()) is not None


def test_folder_argument(tmp_path):
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub' / 'w.safetensors').write_bytes(b'x')
    (tmp_path / 'notes.md').write_bytes(b'x')
    (tmp_path / '__pycache__').mkdir()
    with Recorder([str(tmp_path)]) as r:
        pass
    assert paths(r) == [str(tmp_path / 'sub' / 'w.safetensors')]
    assert [x.path for x in r.listings()] == [str(tmp_path), str(tmp_path / 'sub')]
    (tmp_path / '__pycache__' / 'a.pyc').write_bytes(b'')
    (tmp_path / 'notes.md').write_bytes(b'xy')
    assert check(r.sources(), r.listings()) is None
    (tmp_path / 'sub' / 'adapter.json').write_bytes(b'')
    assert check(r.sources(), r.listings()) == f'{tmp_path}/sub: files came or went'


def test_large_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, 'MAX_FILES', 10)
    for i in range(11):
        (tmp_path / f'{i}.json').write_bytes(b'x')
    with Recorder([str(tmp_path)]) as r:
        (tmp_path / '3.json').read_bytes()
    assert paths(r) == [str(tmp_path / '3.json')]
    assert [x.path for x in r.listings()] == [str(tmp_path)]


def test_folder_changed_by_another_during_the_load(tmp_path):
    with Recorder([str(tmp_path)]) as r:
        subprocess.run(['touch', str(tmp_path / 'x')], check=True)
    assert 'came or went' in r.changed
    with Recorder([str(tmp_path)]) as r:
        (tmp_path / 'mine').write_bytes(b'')
        os.rename(tmp_path / 'mine', tmp_path / 'mine2')
        os.mkdir(tmp_path / 'folder')
    assert not r.changed
    assert check(r.sources(), r.listings()) is None


def test_working_directory(tmp_path, monkeypatch):
    (tmp_path / 'a.pt').write_bytes(b'x')
    monkeypatch.chdir(tmp_path)
    with Recorder([str(tmp_path / 'a.pt')]) as r:
        open('a.pt').close()
    assert r.listings() == []
    with Recorder() as r:
        open('a.pt').close()
    assert [x.path for x in r.listings()] == ['.']
    assert check(r.sources(), r.listings()) is None
    monkeypatch.chdir('/')
    assert check(r.sources(), r.listings()) == 'working directory: another one'


def test_symlinked_snapshot(tmp_path):
    (tmp_path / 'blob').write_bytes(b'x')
    (tmp_path / 'link').symlink_to('blob')
    with Recorder() as r:
        (tmp_path / 'link').read_bytes()
    assert paths(r) == [str(tmp_path / 'link')]
    rewrite(tmp_path / 'blob')
    assert check(r.sources(), ()) is not None


def test_downloaded_file_counts(tmp_path):
    with Recorder() as r:
        (tmp_path / 'x.incomplete').write_bytes(b'x')
        os.replace(tmp_path / 'x.incomplete', tmp_path / 'x')
        (tmp_path / 'x').read_bytes()
    assert paths(r) == [str(tmp_path / 'x')]
    assert not r.changed


def test_nested_threads_and_note(tmp_path):
    a, b, c = (tmp_path / n for n in 'abc')
    for f in (a, b, c):
        f.write_bytes(b'x')
    with Recorder() as outer:
        a.read_bytes()
        with Recorder() as inner:
            thread = threading.Thread(target=b.read_bytes)
            thread.start()
            thread.join()
            note(c)
    b_and_c = [str(b), str(c)]
    assert paths(inner) == b_and_c
    assert paths(outer) == [str(a), *b_and_c]
    a.read_bytes()
    assert inputs._active == ()


def test_ignored_root(tmp_path):
    (tmp_path / 'a').write_bytes(b'x')
    with Recorder(ignore=[str(tmp_path)]) as r:
        (tmp_path / 'a').read_bytes()
    assert paths(r) == []


def test_error_inside_ends_the_recording(tmp_path):
    recorder = Recorder()
    with pytest.raises(KeyError), recorder:
        raise KeyError
    assert inputs._active == ()


def test_first_party_import_is_recorded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / 'recorded_module.py'
    source.write_text('x = 1')
    for _ in range(2):  # the second time from its .pyc
        sys.modules.pop('recorded_module', None)
        with Recorder() as r:
            import recorded_module  # noqa: F401
        assert paths(r) == [str(source)]
    del sys.modules['recorded_module']


@pytest.fixture(scope='module')
def native(tmp_path_factory):
    """Each opener that raises no audit event, with the file that it reads."""
    torch = pytest.importorskip('torch')
    safetensors = pytest.importorskip('safetensors.torch')
    tokenizers = pytest.importorskip('tokenizers')
    d = tmp_path_factory.mktemp('native')
    torch.save({'a': torch.ones(4)}, d / 'x.pt')
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(d / 'j.pt'))
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), str(d / 'p.pt2'))
    safetensors.save_file({'a': torch.ones(4)}, d / 'x.safetensors')
    model = tokenizers.models.WordLevel({'a': 0, '[UNK]': 1}, unk_token='[UNK]')
    tokenizers.Tokenizer(model).save(str(d / 't.json'))
    (d / 'v.json').write_text('{"a": 0}')
    (d / 'm.txt').write_text('#version: 0.2\n')
    bpe = tokenizers.models.BPE
    time.sleep(0.03)
    return d, {
        'x.pt': [lambda p: torch.load(p), lambda p: torch.load(p, mmap=True), lambda p: torch.from_file(p, size=1),
                 lambda p: torch.UntypedStorage.from_file(p, False, 4), torch._C.PyTorchFileReader and
                 (lambda p: torch._C.PyTorchFileReader(p))],
        'j.pt': [lambda p: torch.jit.load(p)],
        'p.pt2': [lambda p: torch.export.load(p)],
        'x.safetensors': [lambda p: safetensors.load_file(p), lambda p: safetensors.safe_open(p, 'pt'),
                          lambda p: safetensors.safe_open(filename=p, framework='pt').keys()],
        't.json': [lambda p: tokenizers.Tokenizer.from_file(p), lambda p: tokenizers.Tokenizer.from_file(path=p)],
        'v.json': [lambda p: bpe.from_file(p, str(d / 'm.txt')), lambda p: bpe.read_file(p, merges=str(d / 'm.txt'))],
    }  # fmt: skip


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', ['x.pt', 'j.pt', 'p.pt2', 'x.safetensors', 't.json', 'v.json'])
def test_native_openers(native, name):
    folder, openers = native
    for opener in openers[name]:
        with Recorder() as r:
            opener(str(folder / name))
        assert str(folder / name) in paths(r), opener
        assert (str(folder / 'm.txt') in paths(r)) == (name == 'v.json')


def test_patches_leave_no_trace(native):
    import safetensors
    import tokenizers
    import torch

    def state():
        return (safetensors.safe_open, safetensors.torch.safe_open, torch._C.PyTorchFileReader, torch.from_file,
                vars(tokenizers.Tokenizer)['from_file'], 'from_file' in vars(torch.UntypedStorage))  # fmt: skip

    folder, _ = native
    before = state()
    with Recorder():
        with Recorder():
            opened = safetensors.safe_open(str(folder / 'x.safetensors'), framework='pt')
            assert isinstance(opened, safetensors.safe_open)
        with safetensors.safe_open(str(folder / 'x.safetensors'), 'pt') as f:
            assert f.get_tensor('a').sum() == 4
        assert safetensors.safe_open is not before[0]
        from safetensors import safe_open

        sys.modules[__name__].safe_open = safe_open
    assert state() == before
    assert type(opened) is before[0]
    assert sys.modules[__name__].safe_open is before[0]


@pytest.fixture(scope='module')
def bert(tmp_path_factory):
    transformers = pytest.importorskip('transformers')
    d = tmp_path_factory.mktemp('bert')
    shape = {'vocab_size': 64, 'hidden_size': 32, 'num_hidden_layers': 1, 'num_attention_heads': 4}
    config = transformers.BertConfig(intermediate_size=48, **shape)
    transformers.BertModel(config).save_pretrained(d)
    return d


def test_transformers(bert):
    from transformers import AutoModel

    # Without the argument's help, so that what is recorded was really seen.
    with Recorder() as r:
        AutoModel.from_pretrained(bert)
    assert {str(bert / 'config.json'), str(bert / 'model.safetensors')} <= set(paths(r))
    assert not r.changed
    assert all(p.startswith(str(bert)) for p in paths(r)), paths(r)
    rewrite(bert / 'model.safetensors')
    assert check(r.sources(), r.listings()) == f'{bert}/model.safetensors: modified'


def test_diffusers(tmp_path):
    diffusers = pytest.importorskip('diffusers')
    down, up = ('DownEncoderBlock2D',) * 2, ('UpDecoderBlock2D',) * 2
    vae = diffusers.AutoencoderKL(3, 3, down, up, block_out_channels=(4, 4), norm_num_groups=2)
    vae.save_pretrained(tmp_path)
    with Recorder() as r:
        diffusers.AutoencoderKL.from_pretrained(tmp_path)
    names = {'config.json', 'diffusion_pytorch_model.safetensors'}
    assert {os.path.basename(p) for p in paths(r)} == names
    assert not r.changed


def test_check_is_quick(tmp_path):
    for i in range(40):
        (tmp_path / f'{i}.json').write_bytes(b'x')
    with Recorder([str(tmp_path)]) as r:
        pass
    assert len(r.sources()) == 40
    best = min(_timed(lambda: check(r.sources(), r.listings())) for _ in range(50))
    assert best < 1e-3


def _timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def test_idle_hook_costs_little():
    with Recorder():
        pass
    code = 'import sys, timeit\nprint(min(timeit.repeat(lambda: sys.audit("x"), number=10000, repeat=5)) / 1e4)'
    with_hook = (
        'from overmind.key.inputs import Recorder\n'
        'with Recorder(): pass\n'
    )  # fmt: skip
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    idle, hooked = (
        float(subprocess.run([sys.executable, '-c', c + code], env=env, capture_output=True, check=True).stdout)
        for c in ('', with_hook)
    )
    assert hooked - idle < 2e-6
