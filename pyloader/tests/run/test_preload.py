"""Which libraries are imported in advance, and what becomes of those that cannot be."""

from __future__ import annotations

import pathlib

import pytest
from warmbench import Bench, output


@pytest.fixture
def library(bench: Bench) -> pathlib.Path:
    """An installed module for a test to write."""
    bench.write('app.py', 'import toylib, odd\nprint("on")')
    return bench.site / 'odd.py'


def explained(bench: Bench) -> str:
    """What --explain says when the parent has settled; checks that the program ran as ever meanwhile."""
    bench.warm_up('app.py')
    return output(bench.warm('--explain', 'app.py'))[1]


def test_a_library_that_starts_threads(bench: Bench, library: pathlib.Path) -> None:
    library.write_text(
        'import threading, time\nt = threading.Thread(target=time.sleep, args=(999,), daemon=True)\nt.start()\n'
    )
    (bench.site / 'above.py').write_text('import odd\n')
    bench.write('app.py', 'import toylib, above\nprint(above.odd.t.is_alive())')
    text = explained(bench)
    assert 'not imported in advance: odd starts threads when it is imported' in text
    assert 'not imported in advance: above needs odd, which starts threads when it is imported' in text
    assert output(bench.warm('app.py')) == (0, 'True\n', '')


def test_a_library_that_ends_the_process(bench: Bench, library: pathlib.Path) -> None:
    library.write_text('import os, sys\nif sys.argv[1:] != ["x"]: os._exit(0)\n')
    bench.warm('app.py', 'x')
    bench.wait_for(
        lambda: (bench.warm('app.py', 'x'), 'odd ended the process' in output(bench.warm('--explain', 'app.py'))[1])[1]
    )
    assert output(bench.warm('app.py', 'x')) == (0, 'on\n', '')


def test_a_library_that_refuses_to_be_imported_by_itself(bench: Bench, library: pathlib.Path) -> None:
    library.write_text('import sys\nif not hasattr(sys.modules["__main__"], "ready"): raise ImportError("too early")\n')
    bench.write('app.py', 'import toylib\nready = 1\nimport odd\nprint("on")')
    assert "odd cannot be imported by itself (ImportError: 'too early')" in explained(bench)
    assert output(bench.warm('app.py')) == (0, 'on\n', '')


def test_a_library_that_warns_whoever_imports_it(bench: Bench, library: pathlib.Path) -> None:
    library.write_text('import warnings\nwarnings.warn("old", DeprecationWarning, stacklevel=2)\n')
    expected = output(bench.python('app.py'))
    assert 'app.py:1: DeprecationWarning: old' in expected[2]
    assert 'odd warns whoever imports it' in explained(bench)
    assert output(bench.warm('app.py')) == expected


def test_what_imports_write_is_written_in_every_run(bench: Bench, library: pathlib.Path) -> None:
    library.write_text('import os, sys\nprint("hello")\nprint("careful", file=sys.stderr)\n')
    expected = output(bench.python('app.py'))
    bench.warm_up('app.py', modules=3)
    for _ in range(2):
        assert output(bench.warm('app.py')) == expected == (0, 'hello\non\n', 'careful\n')


def test_modules_of_other_loaders_are_left_to_them(bench: Bench, library: pathlib.Path) -> None:
    library.write_text('value = __loader__.__class__.__name__\n')
    bench.write(
        'app.py',
        'import sys, toylib, importlib.machinery as m\nclass Own(m.SourceFileLoader): pass\n'
        'class Finder:\n    def find_spec(self, name, path, target=None):\n'
        '        spec = m.PathFinder.find_spec(name, path) if name == "odd" else None\n'
        '        if spec: spec.loader = Own(name, spec.origin)\n        return spec\n'
        'sys.meta_path.insert(0, Finder())\nimport odd\nprint(odd.value)',
    )
    assert 'odd is imported in a way of its own, by __main__.Own' in explained(bench)
    assert output(bench.warm('app.py')) == (0, 'Own\n', '')


def test_the_number_of_cuda_devices_is_asked_in_another_process(bench: Bench) -> None:
    """A stand-in for torch whose real functions leave a mark in the process, as CUDA does."""
    torch = bench.site / 'torch'
    (torch / 'cuda').mkdir(parents=True)
    (torch / '__init__.py').write_text('from . import _C, cuda\n')
    (torch / '_C.py').write_text('spoilt = []\ndef _cuda_getDeviceCount():\n    spoilt.append(1)\n    return 3\n')
    (torch / 'cuda' / '__init__.py').write_text(
        'from .. import _C\ndef device_count(): return _C._cuda_getDeviceCount()\n'
        'def _is_in_bad_fork(): return bool(_C.spoilt)\n'
    )
    (bench.site / 'zoo.py').write_text('import torch\nfrom torch.cuda import device_count\ncount = device_count()\n')
    bench.write(
        'app.py',
        'import torch, zoo\nprint(zoo.count, torch.cuda._is_in_bad_fork(), zoo.count == 3)\n'
        'print(zoo.device_count(), torch.cuda._is_in_bad_fork())',
    )
    bench.warm_up('app.py', modules=4)
    assert output(bench.warm('app.py')) == (0, '3 False True\n3 True\n', '')


def test_random_states_are_fresh(bench: Bench) -> None:
    bench.write('app.py', 'import toylib, random\nprint(random.random(), random.SystemRandom().random())')
    bench.warm_up('app.py')
    assert len({output(bench.warm('app.py'))[1] for _ in range(5)}) == 5


def test_the_generator_of_torch_is_seeded_anew(bench: Bench) -> None:
    """A stand-in for torch: the real one takes its seed from the system when it is loaded."""
    (bench.site / 'torch.py').write_text(
        'import os\nclass Generator:\n    def seed(self): self.value = os.urandom(8)\n'
        'default_generator = Generator()\ndefault_generator.seed()\n'
    )
    bench.write('app.py', 'import toylib, torch\nprint(torch.default_generator.value)')
    bench.warm_up('app.py', modules=3)
    assert len({output(bench.warm('app.py'))[1] for _ in range(5)}) == 5


def test_numpy_has_the_threads_and_the_randomness_of_a_new_process(bench: Bench) -> None:
    pytest.importorskip('numpy')
    bench.write(
        'app.py',
        'import numpy, os\nx = numpy.random.rand()\nnumpy.ones((600, 600)) @ numpy.ones((600, 600))\n'
        'print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))\nprint(x)',
    )
    for env in ({}, {'OPENBLAS_NUM_THREADS': '1'}, {'OMP_NUM_THREADS': '2'}):
        expected = bench.python('app.py', env=env).stdout.splitlines()[0]
        bench.warm('app.py', env=env)
        bench.wait_for(lambda: any(line[3] not in ('0', 'importing') for line in bench.listed()))
        runs = [bench.warm('app.py', env=env) for _ in range(3)]
        assert [run.stderr for run in runs] == [b''] * 3
        assert {run.stdout.splitlines()[0] for run in runs} == {expected}
        assert len({run.stdout.splitlines()[1] for run in runs}) == 3
        bench.warm('--stop')


def test_a_sitecustomize_of_the_users_is_kept(bench: Bench) -> None:
    (bench.site / 'sitecustomize.py').write_text('import sys\nsys.custom = sys.argv[:1]\n')
    bench.write('app.py', 'import sys, toylib\nprint(sys.custom, sys.modules["sitecustomize"].__file__)')
    bench.warm_up('app.py')
    assert output(bench.warm('app.py')) == output(bench.python('app.py'))
