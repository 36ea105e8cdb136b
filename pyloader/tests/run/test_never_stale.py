"""What runs is what is on the disk: the program, its own modules, and the installed libraries."""

from __future__ import annotations

import os
import shutil

from warmbench import Bench, output

CYCLES = int(os.environ.get('OVERMIND_RUN_CYCLES', '150'))


def said(bench: Bench, *words: str, **more: object) -> str:
    code, out, error = output(bench.warm(*(words or ('app.py',)), **more))
    assert (code, error) == (0, ''), error
    return out.strip()


def test_every_edit_runs(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    bench.warm_up('app.py')
    for cycle in range(CYCLES):
        kind = cycle % 4
        if kind == 0:  # a line of the program
            bench.write('app.py', f'import toylib\nprint({cycle})')
        elif kind == 1:  # an own module is added
            bench.write('own.py', f'value = {cycle}\n')
            bench.write('app.py', 'import toylib, own\nprint(own.value)')
        elif kind == 2:  # it is changed
            bench.write('own.py', f'value = {cycle}\n')
        else:  # it is removed, and a package takes its place
            os.unlink(bench.work / 'own.py')
            bench.write('own/__init__.py', f'from . import deep\nvalue = {cycle} + deep.zero\n')
            bench.write('own/deep.py', 'zero = 0\n')
        assert said(bench) == str(cycle)
        if kind == 3:
            shutil.rmtree(bench.work / 'own')
            code, _, error = output(bench.warm('app.py'))
            assert code == 1
            assert "No module named 'own'" in error
    assert len(bench.listed()) == 1


def test_an_upgraded_library_is_the_one_that_runs(bench: Bench) -> None:
    bench.write('app.py', 'import toylib\nprint(toylib.part.value)')
    bench.warm_up('app.py')
    before = bench.parent()
    assert said(bench) == '1'
    for version in (2, 3):  # as an installer does it: other files under the same names, other metadata
        shutil.rmtree(bench.site / f'toylib-{version - 1}.0.dist-info')
        (bench.site / 'toylib' / 'part.new').write_text(f'value = {version}\n')
        os.replace(bench.site / 'toylib' / 'part.new', bench.site / 'toylib' / 'part.py')
        (bench.site / f'toylib-{version}.0.dist-info').mkdir()
        assert said(bench) == str(version)
    assert bench.parent() != before
    (bench.site / 'toylib' / 'part.py').write_text('value = 4\n')  # by hand
    assert said(bench) == '4'
    shutil.rmtree(bench.site / 'toylib')
    assert "No module named 'toylib'" in output(bench.warm('app.py'))[2]


def test_a_new_distribution_or_pth_file_replaces_the_parent(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    bench.warm_up('app.py')
    for name in ('other-1.0.dist-info', 'more.pth'):
        before = bench.parent()
        (bench.site / name).write_text('')
        said(bench)
        assert bench.parent() != before


def test_a_file_that_a_library_read_at_its_import_counts(bench: Bench) -> None:
    settings = bench.write('settings.ini', 'a')
    (bench.site / 'toylib' / 'part.py').write_text(f'value = open({str(settings)!r}).read()\n')
    bench.environment['PYTHONSAFEPATH'] = '1'
    bench.write('app.py', 'import toylib\nprint(toylib.part.value)')
    bench.warm_up('app.py')
    settings.write_text('bb')
    assert said(bench) == 'bb'


def test_the_environment_belongs_to_the_parent(bench: Bench) -> None:
    (bench.site / 'toylib' / 'part.py').write_text('import os\nvalue = os.environ.get("SETTING"), os.getcwd()\n')
    bench.write('app.py', 'import toylib\nprint(*toylib.part.value)')
    bench.warm_up('app.py')
    bench.write('sub/app.py', 'import toylib\nprint(*toylib.part.value)')
    assert said(bench) == f'None {bench.work}'
    assert said(bench, env={'SETTING': 'x'}) == f'x {bench.work}'
    assert said(bench, env={'SETTING': 'y'}) == f'y {bench.work}'
    assert said(bench, env={'COLUMNS': '40', 'SSH_TTY': '/dev/x'}) == f'None {bench.work}'
    assert len(bench.listed()) == 3


def test_an_own_module_goes_before_the_library(bench: Bench) -> None:
    bench.write('app.py', 'import toylib, os\nprint(os.path.basename(os.path.dirname(toylib.__file__)))')
    bench.warm_up('app.py')
    assert said(bench) == 'toylib'
    bench.write('toylib.py', '')
    code, out, error = output(bench.warm('app.py'))
    assert (code, out) == (0, 'work\n')
    assert 'as plain python: ' in error
    assert 'toylib.py comes before' in error
    os.unlink(bench.work / 'toylib.py')
    assert said(bench) == 'toylib'


def test_an_own_module_that_a_library_looked_for(bench: Bench) -> None:
    (bench.site / 'toylib' / 'part.py').write_text(
        'try:\n    import extra\n    value = 2\nexcept ImportError: value = 1\n'
    )
    bench.write('app.py', 'import toylib\nprint(toylib.part.value)')
    bench.warm_up('app.py')
    assert said(bench) == '1'
    bench.write('extra.py', '')
    assert output(bench.warm('app.py'))[1] == '2\n'


def test_a_library_that_imports_own_code_is_not_kept(bench: Bench) -> None:
    own = bench.write('lib/own.py', 'value = 1\n')
    (bench.site / 'plugin.py').write_text('import own\nvalue = own.value\n')
    bench.environment['PYTHONPATH'] = f'{own.parent}{os.pathsep}{bench.environment["PYTHONPATH"]}'
    bench.write('app.py', 'import toylib, plugin\nprint(plugin.value)')
    bench.warm_up('app.py')
    for value in (1, 2):
        own.write_text(f'value = {value}\n')
        assert said(bench) == str(value)
    explained = output(bench.warm('--explain', 'app.py'))[1]
    assert f'not imported in advance: plugin needs own, which is no installed distribution ({own})' in explained


def test_libraries_by_a_pth_file(bench: Bench) -> None:
    """A folder behind site-packages, with distributions that have plugins, is none that stands before anything."""
    more = bench.work.parent / 'more'
    (more / 'other-1.0.dist-info').mkdir(parents=True)
    (more / 'other-1.0.dist-info' / 'entry_points.txt').write_text('[plugins]\nx = other:x\n')
    (more / 'toylib.py').write_text('')
    (bench.site / 'sitecustomize.py').write_text(f'import sys\nsys.path.append({str(more)!r})\n')
    bench.write('app.py', 'import toylib\nprint(toylib.part.value)')
    bench.warm_up('app.py')
    assert said(bench) == '1'


def test_plugins_beside_the_program(bench: Bench) -> None:
    bench.write('app.py', 'import toylib\nprint(toylib.part.value)')
    bench.warm_up('app.py')
    bench.write('own.egg-info/entry_points.txt', '[console_scripts]\nown = own:main\n')
    assert said(bench) == '1'
    bench.write('own.egg-info/entry_points.txt', '[plugins]\nx = own:x\n')
    assert 'own.egg-info has entry points' in output(bench.warm('app.py'))[2]
