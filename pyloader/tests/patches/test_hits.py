"""Patched loaders of which no acceptance case makes a second load: missed once, then hit, with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import overmind

SOURCES = Path(overmind.__file__).parents[1]
LIBRARIES = ('torchvision', 'timm', 'open_clip', 'peft', 'transformers')

MAKE = """
import json, os, sys
import torch
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)
    def forward(self, x):
        return self.inner(x).relu()

torch.export.save(torch.export.export(Net(), (torch.ones(1, 3),)), 'net.pt2')

import torchvision.models as m
os.makedirs('home/hub/checkpoints')
kind = m.SqueezeNet1_1_Weights.DEFAULT
torch.save(m.squeezenet1_1().state_dict(), 'home/hub/checkpoints/' + os.path.basename(kind.url))

import timm
torch.save(timm.create_model('test_vit').state_dict(), 'vit.pt')

import open_clip
tower = dict(context_length=77, vocab_size=100, width=32, heads=2, layers=1)
seen = dict(image_size=32, layers=1, width=32, patch_size=16, head_width=16)
with open('tiny-clip.json', 'w') as f:
    json.dump(dict(embed_dim=16, vision_cfg=seen, text_cfg=tower), f)
open_clip.add_model_config('tiny-clip.json')
torch.save(open_clip.create_model('tiny-clip').state_dict(), 'clip.pt')

import peft, transformers
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2)
transformers.LlamaForCausalLM(config).save_pretrained('llama')
base = transformers.LlamaForCausalLM.from_pretrained('llama')
adapter = peft.get_peft_model(base, peft.LoraConfig(init_lora_weights=False, target_modules=['q_proj']))
adapter.save_pretrained('adapter')
transformers.GenerationConfig(max_new_tokens=7).save_pretrained('generation')
"""

LOADS = {
    'torch.export.load': 'torch.export.load("net.pt2").module()(torch.ones(1, 3))',
    'a builder of torchvision': 'm.squeezenet1_1(weights="DEFAULT").eval()(torch.ones(1, 3, 64, 64))',
    'torchvision.models.get_model': 'm.get_model("squeezenet1_1", weights=m.SqueezeNet1_1_Weights.DEFAULT).eval()'
    '(torch.ones(1, 3, 96, 96))',
    'timm.create_model': 'timm.create_model("test_vit", checkpoint_path="vit.pt").eval()(torch.ones(1, 3, 160, 160))',
    'open_clip.create_model_and_transforms': 'clip(open_clip.create_model_and_transforms("tiny-clip", pretrained='
    '"clip.pt")[0])',
    'open_clip.create_model_from_pretrained': 'clip(open_clip.create_model_from_pretrained("tiny-clip", "clip.pt")[0])',
    'peft.AutoPeftModelForCausalLM': 'peft.AutoPeftModelForCausalLM.from_pretrained("adapter")(torch.ones(1, 4, '
    'dtype=torch.long)).logits',
    'transformers.GenerationConfig, which is left alone': 'torch.tensor(transformers.GenerationConfig.from_pretrained('
    '"generation").max_new_tokens)',
}
USE = """
import json, sys
import torch, torchvision.models as m, timm, open_clip, peft, transformers
import overmind.api
overmind.api.monkey_patch_all()
open_clip.add_model_config('tiny-clip.json')
def clip(model):
    return model.eval()(torch.ones(1, 3, 32, 32), torch.ones(1, 77, dtype=torch.long))[0]
def counts():
    s = overmind.api.stats()
    return [s.hits, s.misses, s.bypasses]
found = {}
for name, expression in json.loads(sys.argv[1]).items():
    torch.manual_seed(1)
    before = counts()
    with torch.no_grad():
        output = eval(expression)
    found[name] = [b - a for a, b in zip(before, counts())], output.double().flatten().tolist()
print(json.dumps(found))
"""


def python(folder: Path, script: str, *args: str, **env: str) -> str:
    environment = {
        'PATH': os.environ['PATH'],
        'HOME': str(folder),
        'PYTHONPATH': os.pathsep.join([str(SOURCES), os.environ.get('PYTHONPATH', '')]),
        'OVERMIND_ROOT': str(folder / 'root'),
        'OVERMIND_STRICT': '1',
        'TORCH_HOME': str(folder / 'home'),
        'HF_HUB_OFFLINE': '1',
        **env,
    }
    line = [sys.executable, '-W', 'ignore', '-c', script, *args]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope='module')
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[list[int], list[float]]]]:
    """What plain loading, a first and a second process counted and got."""
    for name in LIBRARIES:
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp('hits')
    (folder / 'root').mkdir()
    loads = json.dumps(LOADS)
    runs = [python(folder, MAKE + USE, loads, OVERMIND_DISABLE='1'), *(python(folder, USE, loads) for _ in range(2))]
    return [json.loads(out.splitlines()[-1]) for out in runs]


@pytest.mark.parametrize('name', LOADS)
def test_missed_then_hit(results: list[dict[str, tuple[list[int], list[float]]]], name: str) -> None:
    plain, first, second = (found[name] for found in results)
    alone = name.endswith('left alone')
    assert plain[0] == [0, 0, 0]
    assert first[0] == ([0, 0, 0] if alone else [0, 1, 0])
    assert second[0] == ([0, 0, 0] if alone else [1, 0, 0])
    assert plain[1] == first[1] == second[1] != []
