"""OVERMIND_FILL=subprocess, on a plain directory and on a mount of the daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import filling_loaders as loaders
import pytest
import torch

from overmind import cache, logs, statistics
from overmind.api import load, stats
from overmind.errors import Bypass

DAEMON = pathlib.Path(__file__).parents[2] / 'bin' / 'overmind-fs'


@contextlib.contextmanager
def mounted(folder: pathlib.Path) -> Iterator[None]:
    log = folder.with_suffix('.log')
    with log.open('wb') as out:
        daemon = subprocess.Popen([DAEMON, 'mount', folder], stdout=out, stderr=out)
    try:
        until = time.monotonic() + 10
        while not (folder / 'status.json').exists():
            if daemon.poll() is not None or time.monotonic() > until:
                pytest.skip(f'no mount here: {log.read_text()[-300:]}')
            time.sleep(0.02)
        yield
    finally:
        daemon.terminate()
        daemon.wait(20)


@pytest.fixture(params=['plain', 'mount'])
def root(request: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    folder = tmp_path / 'root'
    folder.mkdir()
    monkeypatch.setenv('OVERMIND_ROOT', str(folder))
    monkeypatch.setenv('OVERMIND_FILL', 'subprocess')
    monkeypatch.setattr(cache, '_given_up', {})
    monkeypatch.setattr(logs, '_warned', set())
    monkeypatch.setattr(statistics, '_stats', statistics.Stats())
    if request.param == 'plain':
        yield folder
        return
    if not DAEMON.exists():
        pytest.skip('the daemon is not built')
    with mounted(folder):
        yield folder


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> str:
    path = tmp_path / 'x.pt'
    torch.save(torch.arange(1000.0), path)
    return str(path)


def counts() -> tuple[int, int, int]:
    s = stats()
    return s.hits, s.misses, s.bypasses


def nothing_left(root: pathlib.Path) -> bool:
    until = time.monotonic() + 5
    while list((root / 'staging').iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    return not list((root / 'staging').iterdir()) and not list((root / 'pipelines').iterdir())


def test_nothing_is_left_in_the_caller(root: pathlib.Path, checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop('colorsys', None)
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate(), set(threading.enumerate())
    first = load(loaders.make, checkpoint)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert set(threading.enumerate()) <= states[2]
    assert 'colorsys' not in sys.modules
    assert first['pid'] != os.getpid()
    assert torch.equal(first['weight'], torch.arange(1000.0))
    out = capfd.readouterr()
    assert (out.out, out.err) == ('to stdout\n', 'to stderr\n')
    assert counts() == (0, 1, 0)
    assert {'key', 'process', 'load', 'commit', 'map', 'rebuild'} <= set(stats().loads[0].seconds)
    second = load(loaders.make, checkpoint)
    assert second['pid'] == first['pid']
    assert counts() == (1, 1, 0)


def test_modes_of_torch_and_random_states_go_along(root: pathlib.Path, checkpoint: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert load(loaders.make, checkpoint)['dtype'].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    torch.manual_seed(7)
    expected = torch.randn(4)
    torch.manual_seed(7)
    with torch.no_grad(), torch.device('cpu'):
        assert torch.equal(load(loaders.random_weights, checkpoint), expected)
    assert counts() == (0, 2, 0)


def test_the_loaders_exception(root: pathlib.Path, checkpoint: str) -> None:
    with pytest.raises(FileNotFoundError, match='no such weights') as caught:
        load(loaders.raises, checkpoint)
    assert caught.value.filename == checkpoint
    assert 'in raises' in str(caught.value.__cause__)
    with pytest.raises(SystemExit) as left:
        load(loaders.exits, checkpoint)
    assert left.value.code == 3
    assert nothing_left(root)
    assert counts() == (0, 0, 0)


def test_an_exception_that_does_not_come_back(
    root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    with caplog.at_level(logging.WARNING, 'overmind'), pytest.raises(loaders.Odd, match='1 and 2'):
        load(loaders.raises_odd, checkpoint)
    assert 'cannot be brought back' in caplog.text


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_is_one_warning_and_a_plain_load(
    root: pathlib.Path,
    checkpoint: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Bypass, match=number.name):
        load(loaders.ends, checkpoint, number.value, os.getpid())
    cache._given_up.clear()
    monkeypatch.delenv('OVERMIND_STRICT')
    with caplog.at_level(logging.WARNING, 'overmind'):
        for _ in range(2):
            assert torch.equal(load(loaders.ends, checkpoint, number.value, os.getpid()), torch.arange(1000.0))
    assert caplog.text.count(number.name) == 1
    assert counts() == (0, 0, 3)
    assert nothing_left(root)


def test_what_cannot_be_cached(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('OVERMIND_STRICT')
    assert load(loaders.opened, checkpoint)[0].read(2) == b'PK'
    assert counts() == (0, 0, 1)
    assert 'open in this process' in stats().reasons[0]
    assert nothing_left(root)


def test_cached_arguments_are_filled_here(root: pathlib.Path, checkpoint: str) -> None:
    inner = load(torch.load, checkpoint)
    out = load(loaders.wrap, inner)
    assert out['inner'] is inner
    assert out['pid'] == os.getpid()
    assert counts() == (0, 2, 0)


def test_another_key_there(root: pathlib.Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders.random_weights, '__code__', (lambda path: path + '!').__code__)
    with pytest.raises(Bypass, match='another key; different: code'):
        load(loaders.random_weights, checkpoint)
    monkeypatch.delenv('OVERMIND_STRICT')
    assert load(loaders.random_weights, checkpoint) == checkpoint + '!'
    assert nothing_left(root)


SCRIPT = """
    import sys, threading
    import torch
    from torch import nn
    from overmind.api import load, stats

    SCALE = 3

    class Problem(Exception):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return helper(x * self.weight)

        def again(self):
            return Net

    def helper(x):
        return x * SCALE

    def make(path, fail=False):
        if fail:
            raise Problem(path)
        net = Net()
        net.path = path
        return net

    class Outer:
        class Inner:
            def get(self):
                return 7

    def inner(path, kind=Outer.Inner):
        return kind()

    def local(n):
        class Here(nn.Module):
            def forward(self, x):
                return x + n
        return lambda path: [Here(), make(path)]

    first = load(make, sys.argv[1])
    print(type(first) is Net, first.again() is Net, first(torch.ones(3)).tolist())
    here, net = load(local(5), sys.argv[1])
    print(here(torch.zeros(1)).item(), type(net) is Net)
    try:
        load(make, sys.argv[1], fail=True)
    except Problem as e:
        print('Problem', e.args == (sys.argv[1],))
    nested = load(inner, sys.argv[1])
    print(type(nested) is Outer.Inner, nested.get())
    saved = sys.argv[1] + '.net'
    torch.save(Net(), saved)
    print(type(load(torch.load, saved, weights_only=False)) is Net)
    s = stats()
    print(s.hits, s.misses, s.bypasses)
"""


def test_functions_and_classes_of_main(root: pathlib.Path, checkpoint: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / 'script.py'
    script.write_text(textwrap.dedent(SCRIPT))
    (tmp_path / 'types.py').write_text('raise RuntimeError("the current folder hides the standard library")')
    (tmp_path / 'elsewhere').mkdir()
    moved = script.rename(tmp_path / 'elsewhere' / 'script.py')
    for counted in ('0 4 0', '3 1 0'):
        run = subprocess.run(
            [sys.executable, moved, checkpoint], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == [
            'True True [3.0, 3.0, 3.0]',
            '5.0 True',
            'Problem True',
            'True 7',
            'True',
            counted,
        ]
        assert run.stderr.count('\n') == 1
        assert 'looks for Net in __main__' in run.stderr


def test_patched_loaders_and_modules_that_cannot_be_imported_by_name(
    root: pathlib.Path, checkpoint: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / 'hidden').mkdir()
    (tmp_path / 'hidden' / 'hidden_module.py').write_text(
        'import torch\nclass Kept: pass\ndef make(path):\n    k = Kept()\n    k.w = torch.load(path)\n    return k\n'
    )
    script = textwrap.dedent("""
        import importlib.util, sys
        from overmind.api import load, monkey_patch_all, stats
        monkey_patch_all()
        import torch
        print(torch.load(sys.argv[1]).sum().item())
        spec = importlib.util.spec_from_file_location('hidden_module', sys.argv[2])
        module = sys.modules['hidden_module'] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(type(load(module.make, sys.argv[1])) is module.Kept)
        s = stats()
        print(s.hits, s.misses, s.bypasses)
    """)
    for counted in ('0 2 0', '2 0 0'):
        line = [sys.executable, '-c', script, checkpoint, str(tmp_path / 'hidden' / 'hidden_module.py')]
        run = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert run.stdout.splitlines() == ['499500.0', 'True', counted], run.stderr


@pytest.mark.parametrize('end', [signal.SIGINT, signal.SIGKILL])
def test_the_process_ends_with_the_program(
    root: pathlib.Path, checkpoint: str, tmp_path: pathlib.Path, end: signal.Signals
) -> None:
    script = textwrap.dedent(f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        sys.path[:0] = [{os.path.dirname(__file__)!r}]
        import filling_loaders
        from overmind.api import load
        load(filling_loaders.waits, {checkpoint!r}, sys.argv[1])
    """)
    sign = tmp_path / 'sign'
    program = subprocess.Popen([sys.executable, '-c', script, str(sign)], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (sign.exists() and sign.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    child = int(sign.read_text())
    program.send_signal(end)
    _, err = program.communicate(timeout=20)
    assert program.returncode == -end
    assert err.count('KeyboardInterrupt') == (1 if end == signal.SIGINT else 0), err
    until = time.monotonic() + 10
    while os.path.exists(f'/proc/{child}') and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(f'/proc/{child}')
    assert nothing_left(root)
    assert torch.equal(load(torch.load, checkpoint), torch.arange(1000.0))
