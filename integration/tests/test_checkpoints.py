"""The checkpoint that everything else is measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.checkpoints import build
from integration.checkpoints.configs import SINGLE_FILE, SINGLE_FILE_CONFIG
from integration.checkpoints.vocabulary import TOKENS, write_tokenizer
from integration.harness.places import checkpoint_folder

pytestmark = pytest.mark.one_way('nothing is cached')

TENSORS = 1810


def test_complete_checkpoint_is_not_built_again(checkpoint: Path) -> None:
    said: list[str] = []
    assert build(checkpoint, 'tiny', 'fp16', said.append) == checkpoint
    assert said == []


def test_graph_of_the_tiny_one_is_that_of_the_true_one(checkpoint: Path) -> None:
    assert json.loads((checkpoint / 'complete.json').read_text())['tensors'] == TENSORS


def test_vocabulary_is_that_of_clip(tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    write_tokenizer(tmp_path)
    ids = json.loads((tmp_path / 'vocab.json').read_text())
    assert len(ids) == TOKENS
    assert (ids['!'], ids['a</w>'], ids['<|startoftext|>'], ids['<|endoftext|>']) == (0, 320, 49406, 49407)
    # As published for this prompt with the tokenizer of Stable Diffusion.
    assert CLIPTokenizer.from_pretrained(tmp_path)('a photo of a cat').input_ids == [
        49406,
        320,
        1125,
        539,
        320,
        2368,
        49407,
    ]


def test_single_file_is_the_same_pipeline(checkpoint: Path) -> None:
    import torch
    from diffusers import StableDiffusionPipeline

    single = build(checkpoint_folder('tiny', 'single-file'), 'tiny', 'single-file')
    config = str(single / SINGLE_FILE_CONFIG)
    loaded = StableDiffusionPipeline.from_single_file(str(single / SINGLE_FILE), config=config, torch_dtype=torch.half)
    expected = StableDiffusionPipeline.from_pretrained(checkpoint / 'pipeline', torch_dtype=torch.half)
    for part in ('unet', 'vae', 'text_encoder'):
        ours, theirs = (getattr(pipeline, part).state_dict() for pipeline in (loaded, expected))
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_pipeline_of_a_single_file_is_a_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from diffusers import StableDiffusionPipeline
    from overmind.api import monkey_patch_all, stats, unpatch_all

    single = build(checkpoint_folder('tiny', 'single-file'), 'tiny', 'single-file')
    (tmp_path / 'root').mkdir()
    monkeypatch.setenv('OVERMIND_ROOT', str(tmp_path / 'root'))
    monkeypatch.setenv('OVERMIND_STRICT', '1')
    before = len(stats().loads)
    config = str(single / SINGLE_FILE_CONFIG)
    monkey_patch_all()
    try:
        first, second = (
            StableDiffusionPipeline.from_single_file(str(single / SINGLE_FILE), config=config) for _ in range(2)
        )
    finally:
        unpatch_all()
    assert [one.outcome for one in stats().loads[before:]] == ['miss', 'hit']
    for part in ('unet', 'vae', 'text_encoder'):
        ours, theirs = (getattr(pipeline, part).state_dict() for pipeline in (first, second))
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_llama_is_in_two_shards_or_a_pickle() -> None:
    import torch
    from transformers import LlamaForCausalLM

    sharded, pickled = (build(checkpoint_folder('tiny', kind), 'tiny', kind) for kind in ('llama', 'llama-bin'))
    assert len(list(sharded.glob('*.safetensors'))) == 2
    assert not list(pickled.glob('*.safetensors'))
    ours, theirs = (LlamaForCausalLM.from_pretrained(folder).state_dict() for folder in (sharded, pickled))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert {value.dtype for value in ours.values()} == {torch.bfloat16}
