"""The hash that a generation config keeps of itself, read by a process with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from roundtrip import roundtrip

transformers = pytest.importorskip('transformers')

from overmind.structure import hashes  # noqa: E402


def config(temperature: float) -> transformers.GenerationConfig:
    made = transformers.GenerationConfig(temperature=temperature)
    made._original_object_hash = hash(made)
    return made


def test_one_that_was_not_changed() -> None:
    back = roundtrip(config(0.5))
    assert back._original_object_hash == hash(back)
    assert list(vars(back)) == list(vars(config(0.5)))
    back.temperature = 0.7
    assert back._original_object_hash != hash(back)


def test_one_that_was_changed_and_one_that_has_none() -> None:
    made = config(0.5)
    made.temperature = 0.7
    back = roundtrip(made)
    assert back._original_object_hash != hash(back)
    del made._original_object_hash
    assert not hasattr(roundtrip(made), '_original_object_hash')


def test_one_whose_hash_is_not_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.GenerationConfig, '__hash__', lambda self: hash(('another', self.temperature)))
    made = config(0.5)
    reduced = hashes.reduced(made)
    assert reduced[2][1] is None
    assert roundtrip(made)._original_object_hash == hash(made)


LOAD = """
def made():
    g = GenerationConfig(temperature=0.6)
    g._original_object_hash = hash(g)
    return g
g = overmind.api.load(made)
s = overmind.api.stats()
print(s.hits, s.misses, g._original_object_hash == hash(g))
g.save_pretrained(sys.argv[1])
"""


def test_another_process_can_save_what_it_has_not_changed(root: Path, tmp_path: Path) -> None:
    """Strict validation is for what was changed."""
    script = tmp_path / 'program.py'
    script.write_text(f'import sys\nimport overmind.api\nfrom transformers import GenerationConfig\n{LOAD}')
    found = []
    for seed in ('1', '2'):
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / seed)],
            env={**os.environ, 'PYTHONHASHSEED': seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == ['0 1 True', '1 0 True']
    assert (tmp_path / '2' / 'generation_config.json').exists()
