"""bitsandbytes on the CPU, 4 bit with double quantisation, filled in another process that leaves nothing behind."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

MAKE = """
import torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2)
transformers.LlamaForCausalLM(config).save_pretrained('llama')
"""
USE = """
import hashlib, json, os, sys, threading
import torch, transformers
import overmind.api
overmind.api.monkey_patch_all()
facts = {'load_in_4bit': True, 'bnb_4bit_quant_type': 'nf4', 'bnb_4bit_use_double_quant': True}
def digest(t):
    return hashlib.sha256(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
def state(s, done=()):
    if isinstance(s, torch.Tensor):
        return digest(s)
    if hasattr(s, '__dict__') and type(s).__module__.startswith('bitsandbytes'):
        return {k: state(v) for k, v in sorted(vars(s).items())}
    return repr(s)
config = transformers.BitsAndBytesConfig(**facts)
model = transformers.AutoModelForCausalLM.from_pretrained('llama', quantization_config=config, device_map='cpu')
weights = {n: [type(p).__name__, str(p.dtype), digest(p), state(getattr(p, 'quant_state', None))]
           for n, p in model.named_parameters()}
with torch.no_grad():
    logits = model(torch.arange(4)[None]).logits.double().flatten().tolist()
s = overmind.api.stats()
print(json.dumps({
    'counts': [s.hits, s.misses, s.bypasses], 'elsewhere': ['process' in load.seconds for load in s.loads],
    'weights': weights, 'logits': logits, 'cuda': torch.cuda.is_initialized(),
    'children': open(f'/proc/self/task/{os.getpid()}/children').read().split(),
}))
"""


def test_as_without_the_cache(tmp_path: pathlib.Path) -> None:
    for name in ('transformers', 'accelerate', 'bitsandbytes'):
        pytest.importorskip(name)
    (tmp_path / 'root').mkdir()

    def run(script: str, **variables: str) -> str:
        environment = {
            **os.environ,
            'OVERMIND_ROOT': str(tmp_path / 'root'),
            'OVERMIND_FILL': 'subprocess',
            'HF_HUB_OFFLINE': '1',
            **variables,
        }
        line = [sys.executable, '-W', 'ignore', '-c', script]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    runs = run(MAKE + USE, OVERMIND_DISABLE='1'), run(USE), run(USE)
    plain, first, second = (json.loads(out.splitlines()[-1]) for out in runs)
    assert plain['counts'] == [0, 0, 0]
    assert first['counts'] == [0, 1, 0]
    assert first['elsewhere'] == [True]
    assert second['counts'] == [1, 0, 0]
    for other in (first, second):
        assert other['weights'] == plain['weights']
        assert other['logits'] == plain['logits']
        assert not other['cuda']
        assert other['children'] == []
    assert 'Params4bit' in {weight[0] for weight in plain['weights'].values()}
