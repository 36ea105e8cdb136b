"""An entry cannot be read: it is loaded anew."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from failing import Falls, assert_made, make

from overmind.api import load, stats
from overmind.manifest import decode
from overmind.manifest import encode as encoding
from overmind.manifest.encode import encode


def test_a_manifest_of_a_future_format(
    entry: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = entry / 'manifest'
    manifest = decode(path.read_bytes())
    monkeypatch.setattr(encoding, 'FORMAT', 2)
    path.chmod(0o644)
    path.write_bytes(encode(manifest))
    monkeypatch.setattr(encoding, 'FORMAT', 1)
    assert_made(falls_back('format 2', make, checkpoint, outcome='miss'))


def test_a_short_arena(entry: pathlib.Path, checkpoint: str, falls_back: Falls) -> None:
    (arena,) = (entry / 'tensors').iterdir()
    arena.chmod(0o644)
    os.truncate(arena, arena.stat().st_size - 1)
    assert_made(falls_back('the manifest says', make, checkpoint, outcome='miss'))


def of_a_library(path: str) -> Any:
    try:
        import passing_library  # type: ignore[import-not-found]
    except ImportError:
        return 'plain'
    return passing_library.Thing()


def test_a_module_that_is_gone(
    root: pathlib.Path, tmp_path: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / 'site-packages' / 'passing_library.py'
    library.parent.mkdir()
    library.write_text('class Thing:\n    pass\n')
    monkeypatch.setattr(sys, 'path', [str(library.parent), *sys.path])
    assert type(load(of_a_library, checkpoint)).__name__ == 'Thing'
    del sys.modules['passing_library']
    sys.path.pop(0)
    result = falls_back("No module named 'passing_library'", of_a_library, checkpoint, outcome='miss')
    assert result == 'plain'


@pytest.mark.skipif(os.geteuid() != 0, reason='only root gives files away')
def test_another_users_entry(
    entry: pathlib.Path, checkpoint: str, falls_back: Falls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of one's own it is replaced, unless its owner is trusted."""
    for name in ('manifest', 'structure.pkl'):
        os.chown(entry / name, 4242, -1)
    monkeypatch.setenv('OVERMIND_TRUST', '4242')
    assert_made(load(make, checkpoint))
    assert stats().loads[-1].outcome == 'hit'
    monkeypatch.delenv('OVERMIND_TRUST')
    assert_made(falls_back('belongs to uid 4242', make, checkpoint, outcome='miss'))
    assert (entry / 'manifest').stat().st_uid == 0
    assert_made(load(make, checkpoint))
    assert stats().loads[-1].outcome == 'hit'


SCRIPT = """
import logging, os, resource, sys
sys.path[:0] = [sys.argv[1]]
import fallback_loaders
from overmind.api import load, stats
if sys.argv[3] == 'limited':
    import overmind.cache, overmind.fill, overmind.restore, overmind.key.natives, overmind_cext, torch.utils.dlpack
    load(fallback_loaders.zeros, 'other')
    with open('/proc/self/statm') as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
sys.zeros = int(sys.argv[4])
value = load(fallback_loaders.zeros, sys.argv[2])
print(value.numel(), stats().loads[-1].outcome, stats().loads[-1].reason)
"""


def test_no_address_space(root: pathlib.Path, checkpoint: str) -> None:
    def run(mode: str, size: int, **env: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, '-c', SCRIPT, os.path.dirname(__file__), checkpoint, mode, str(size)]
        return subprocess.run(line, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)

    assert '268435456 miss' in run('free', 256 << 20).stdout
    strict = run('limited', 10)
    assert strict.returncode == 1
    assert 'StoreError' in strict.stderr
    relaxed = run('limited', 10, OVERMIND_STRICT='0')
    assert relaxed.stdout.startswith('10 bypass zeros-'), relaxed.stdout + relaxed.stderr
    assert 'cannot be mapped: mmap (address space) of 268' in relaxed.stdout
    assert relaxed.stderr.count('warning') == 1
    assert '268435456 hit' in run('free', 10).stdout
