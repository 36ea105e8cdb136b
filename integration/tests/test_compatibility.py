"""The table of docs/compatibility.md, from small results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration import compatibility
from integration.cases import versions_file

pytestmark = pytest.mark.one_way('results that were written by hand')

NEW = {'Python': '3.11.7', 'torch': '2.15.0', 'transformers': '5.24.0', 'diffusers': '0.42.1'}
OLD = {'Python': '3.11.7', 'torch': '2.9.1+cu128', 'transformers': '4.57.6', 'diffusers': '0.36.0', 'peft': '0.18.1'}
PIPELINE = 'diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion.StableDiffusionPipeline.from_pretrained'


def counted(reasons: str = '[]', **counters: int) -> dict[str, Any]:
    return {'counters': {'hits': 0, 'misses': 0, 'bypasses': 0, **counters}, 'reasons': reasons}


def report(
    case: str, *results: dict[str, Any], status: str = 'passed', why: str = '', via: str = 'load'
) -> dict[str, Any]:
    steps = [{'role': 'truth', 'seconds': 0.1}, *({'role': 'load', 'results': [result]} for result in results)]
    return {'case': case, 'via': via, 'status': status, 'why': why, 'steps': steps}


def filled(loader: str, case: str, **more: Any) -> dict[str, Any]:
    return report(case, counted(f"['{loader}: not in the cache']", misses=1), counted(hits=1), **more)


def bypassed(loader: str, case: str, reason: str, **more: Any) -> dict[str, Any]:
    return report(case, *[counted(repr([f'{loader}: {reason}']), bypasses=1)] * 2, **more)


@pytest.fixture
def page(tmp_path: Path) -> str:
    """The page that the command writes for two runs."""
    runs = {
        'new': (NEW, [
            filled('torch.serialization.load', 'torch.state_dict.patched', via='patched'),
            filled('torch.serialization.load', 'torch.state_dict.load'),
            filled(PIPELINE, 'df.sd_pipeline.patched', via='patched'),
            filled(PIPELINE, 'df.sd_pipeline.load'),
            bypassed('zoo.x.make', 'torch.open_file', '/a/b.py | it is open'),
        ]),
        'old': (OLD, [
            filled('torch.serialization.load', 'torch.state_dict.patched', via='patched'),
            filled('torch.serialization.load', 'torch.state_dict.load'),
            filled(PIPELINE, 'df.sd_pipeline.patched', via='patched'),
            bypassed(PIPELINE, 'df.sd_pipeline.load', 'word ' * 100),
            report('torch.open_file', {'error': 'boom'}, status='failed', why='boom'),
            report('later.new_thing', status='skipped', why='needs x'),
        ]),
    }  # fmt: skip
    files = []
    for name, (versions, reports) in runs.items():
        file = tmp_path / f'{name}.json'
        file.write_text(json.dumps(reports))
        versions_file(file).write_text(json.dumps(versions))
        files.append(str(file))
    out = tmp_path / 'page.md'
    assert compatibility.main([*files, '-o', str(out)]) == 0
    return out.read_text()


def test_versions_and_counts_of_each_run(page: str) -> None:
    assert '|  | torch 2.15, transformers 5.24, diffusers 0.42 | torch 2.9, transformers 4.57, diffusers 0.36 |' in page
    for line in (
        '| torch | 2.15.0 | 2.9.1 |',
        '| peft | - | 0.18.1 |',
        '| hit | 4 | 3 |',
        '| bypass | 1 | 1 |',
        '| skipped | 0 | 1 |',
        '| failed | 0 | 1 |',
    ):
        assert line in page.splitlines()


def test_both_ways_are_one_row_where_they_agree(page: str) -> None:
    assert '| state dict | `torch.load` | patched, load | hit | hit |  |' in page
    loader = '`diffusers.StableDiffusionPipeline.from_pretrained`'
    assert f'| Stable Diffusion pipeline | {loader} | patched | hit | hit |  |' in page
    assert f'| Stable Diffusion pipeline | {loader} | load | hit | bypass | word word' in page


def test_reasons_are_short_and_without_paths(page: str) -> None:
    assert '| module that holds an open file | own function | load | bypass | failed | … \\| it is open; boom |' in page
    assert max(map(len, page.splitlines())) < 300


def test_case_that_nobody_has_named(page: str) -> None:
    assert '\n## later\n' in page
    assert '| new thing |  | load | - | skipped | needs x |' in page


def test_reasons_that_were_cut_off() -> None:
    whole = repr(['a.load: first', 'b.load: second'])
    assert compatibility.reasons(whole) == [('a.load', 'first'), ('b.load', 'second')]
    assert compatibility.reasons(whole[:-5]) == [('a.load', 'first'), ('b.load', 'sec')]
    assert compatibility.reasons(whole[:-12]) == [('a.load', 'first')]
    assert compatibility.reasons('no list') == []


@pytest.mark.parametrize(
    ('name', 'shown'),
    [
        ('torch.serialization.load', '`torch.load`'),
        ('torch.jit._serialization.load', '`torch.jit.load`'),
        ('safetensors.torch.load_file', '`safetensors.torch.load_file`'),
        ('builtins.safe_open', '`safe_open`'),
        (
            'sentence_transformers.SentenceTransformer.SentenceTransformer',
            '`sentence_transformers.SentenceTransformer`',
        ),
        ('zoo.torch_objects.make', 'own function'),
    ],
)
def test_names_of_loaders(name: str, shown: str) -> None:
    assert compatibility.readable_loader(name) == shown
