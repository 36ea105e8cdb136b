"""The checkpoint that everything else is measured with."""

from __future__ import annotations

import json
from pathlib import Path

from integration.checkpoints import build
from integration.checkpoints.vocabulary import TOKENS, write_tokenizer

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
