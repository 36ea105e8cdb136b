"""CLIP's own vocabulary in the files that ``CLIPTokenizer`` reads, made from the merges that open_clip ships."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

TOKENS = 49408
_START, _END = '<|startoftext|>', '<|endoftext|>'


def _letters() -> list[str]:
    """The 256 bytes as printable characters, in the order in which they are CLIP's first tokens."""
    printable = [*range(ord('!'), ord('~') + 1), *range(ord('¡'), ord('¬') + 1), *range(ord('®'), ord('ÿ') + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def _merges() -> list[str]:
    """The learned merges, most frequent first; the shipped file has more than the 48,894 that CLIP was trained with."""
    found = importlib.util.find_spec('open_clip')
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError('open_clip_torch is not installed, and it ships the vocabulary of CLIP')
    path = Path(found.submodule_search_locations[0]) / 'bpe_simple_vocab_16e6.txt.gz'
    lines = gzip.decompress(path.read_bytes()).decode('utf-8').split('\n')
    return lines[1 : 1 + TOKENS - 2 * 256 - 2]


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer of Stable Diffusion 1.5 as its repository has it."""
    folder.mkdir(parents=True, exist_ok=True)
    merges, letters = _merges(), _letters()
    tokens = [
        *letters,
        *(letter + '</w>' for letter in letters),
        *(pair.replace(' ', '') for pair in merges),
        _START,
        _END,
    ]
    if len(set(tokens)) != TOKENS:
        raise ValueError(f'the vocabulary of CLIP has {TOKENS} tokens, not {len(set(tokens))}')
    ids = {token: number for number, token in enumerate(tokens)}
    (folder / 'vocab.json').write_text(json.dumps(ids, ensure_ascii=False), encoding='utf-8')
    (folder / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]) + '\n', encoding='utf-8')
    special = {'bos_token': _START, 'eos_token': _END, 'pad_token': _END, 'unk_token': _END}
    (folder / 'special_tokens_map.json').write_text(json.dumps(special, indent=2))
    config = {**special, 'add_prefix_space': False, 'do_lower_case': True, 'errors': 'replace', 'model_max_length': 77}
    (folder / 'tokenizer_config.json').write_text(json.dumps({**config, 'tokenizer_class': 'CLIPTokenizer'}, indent=2))
