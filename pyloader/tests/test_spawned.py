"""A script and the processes that multiprocessing spawns for it, where its functions and classes are of __mp_main__."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent("""
    import json, multiprocessing, sys
    import torch
    from overmind.api import load, stats

    class Net(torch.nn.Linear):
        def twice(self, x): return 2 * self(x)

    def make(path):
        net = Net(2, 2)
        net.load_state_dict(torch.load(path))
        return {'net': net, 'then': Net.twice, 'kind': Net}

    def loaded(path):
        got = load(make, path)
        s = stats()
        own = type(got['net']) is Net and got['kind'] is Net and got['then'] is Net.twice
        return [s.hits, s.misses, s.bypasses], own, got['net'].twice(torch.ones(1, 2)).tolist(), s.reasons

    if __name__ == '__main__':
        path, first = sys.argv[1:]
        found = [loaded(path)] if first == 'parent' else []
        with multiprocessing.get_context('spawn').Pool(1) as pool:
            found.append(pool.apply(loaded, (path,)))
        print(json.dumps([*found, loaded(path)]))
""")


@pytest.mark.parametrize(('first', 'fill'), [('parent', 'inline'), ('child', 'inline'), ('child', 'subprocess')])
def test_one_entry_for_the_script_and_its_children(
    root: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, first: str, fill: str
) -> None:
    import torch

    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / 'x.pt')
    (tmp_path / 'script.py').write_text(SCRIPT)
    monkeypatch.setenv('OVERMIND_FILL', fill)
    line = [sys.executable, '-W', 'ignore', str(tmp_path / 'script.py'), str(tmp_path / 'x.pt'), first]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout)
    counts = {'parent': [[0, 1, 0], [1, 0, 0], [1, 1, 0]], 'child': [[0, 1, 0], [1, 0, 0]]}
    assert [r[0] for r in results] == counts[first], results
    assert all(r[1] for r in results)
    assert all(r[2] == results[0][2] for r in results)
