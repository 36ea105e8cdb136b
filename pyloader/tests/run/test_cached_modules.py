"""What cached pipelines need is imported in advance for a program that uses the cache."""

from __future__ import annotations

import os
import pathlib

import pytest
from warmbench import Bench, output

from overmind import directory
from overmind.manifest import Manifest
from overmind.manifest.encode import encode


@pytest.fixture
def root(bench: Bench, tmp_path: pathlib.Path) -> pathlib.Path:
    """A plain directory with the pipeline of another program, made by an installed library."""
    (bench.site / 'zoo').mkdir()
    (bench.site / 'zoo' / '__init__.py').write_text('')
    (bench.site / 'zoo' / 'animals.py').write_text('import os\nprocess = os.getpid()\n')
    (bench.site / 'zoo' / 'loaders.py').write_text('')
    root = tmp_path / 'root'
    root.mkdir()
    directory.prepare(str(root))
    for id, name in (('a', 'zoo.animals.Cat'), ('b', 'no.such.Class'), ('c', '__main__.Own'), ('d', 'toylib.absent.X')):
        folder = root / 'pipelines' / id
        folder.mkdir(parents=True)
        (folder / 'manifest').write_bytes(encode(Manifest(id, class_name=name, loader='zoo.loaders.Base.load')))
    (root / 'pipelines' / 'e').mkdir()
    (root / 'pipelines' / 'e' / 'manifest').write_bytes(b'broken')
    bench.environment['OVERMIND_ROOT'] = str(root)
    return root


def imported_in_advance(bench: Bench) -> bool:
    """Whether another process than the program's has imported the module; checked in a run that it is learnt from."""
    bench.write('app.py', 'import overmind.api, os, zoo.animals\nprint(zoo.animals.process != os.getpid())')
    code, out, error = output(bench.warm('app.py'))
    assert (code, error) == (0, '')
    return out == 'True\n'


def ready(bench: Bench) -> bool:
    return all(words[3] not in ('0', 'importing') for words in bench.listed())


def test_modules_of_pipelines_of_other_programs(bench: Bench, root: pathlib.Path) -> None:
    bench.write('app.py', 'import overmind.api')
    assert output(bench.warm('app.py')) == (0, '', '')
    bench.wait_for(lambda: ready(bench))
    assert imported_in_advance(bench)
    explained = output(bench.warm('--explain', 'app.py'))[1]
    assert 'not imported in advance' not in explained


def test_not_for_programs_that_do_not_use_the_cache(bench: Bench, root: pathlib.Path) -> None:
    bench.write('app.py', 'import toylib')
    bench.warm_up('app.py')
    assert not imported_in_advance(bench)


def test_not_of_entries_of_somebody_who_is_not_trusted(bench: Bench, root: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip('only root can give files away')
    for path in (root / 'pipelines').glob('*/manifest'):
        os.chown(path, 12345, 12345)
    bench.write('app.py', 'import overmind.api')
    assert output(bench.warm('app.py')) == (0, '', '')
    bench.wait_for(lambda: ready(bench))
    assert not imported_in_advance(bench)
