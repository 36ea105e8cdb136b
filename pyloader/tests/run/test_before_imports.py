"""What a program does before it imports its first library acts on the libraries, as under python."""

from __future__ import annotations

import os

import pytest
from warmbench import Bench, output


@pytest.fixture
def warm(bench: Bench) -> Bench:
    """A library that looks at the environment while it is imported, imported in advance."""
    (bench.site / 'toylib' / 'part.py').write_text(
        'import os\nvalue = os.environ.get("SETTING"), "GONE" in os.environ\n'
    )
    bench.environment['GONE'] = '1'
    return bench


def program(bench: Bench, first: str) -> None:
    bench.write('app.py', f'import os, sys\n{first}\nimport toylib.part\nprint(toylib.part.value)')


def run(bench: Bench, *words: str) -> tuple[str, str]:
    code, out, error = output(bench.warm('app.py', *words))
    assert code == 0, error
    return out, error


def test_settings_of_the_environment(warm: Bench) -> None:
    program(warm, 'os.environ["SETTING"] = "a"; del os.environ["GONE"]')
    warm.warm_up('app.py')
    assert run(warm) == ("('a', False)\n", '')
    program(warm, 'os.environ["SETTING"] = "b"')
    out, error = run(warm)
    assert out == "('b', True)\n"
    assert 'starts again as plain python: it sets SETTING, GONE otherwise than before' in error
    for _ in range(2):
        assert run(warm) == ("('b', True)\n", '')
    warm.wait_for(lambda: [words[3] for words in warm.listed()] == ['2'])
    assert run(warm) == ("('b', True)\n", '')


def test_settings_that_differ_in_every_run(warm: Bench) -> None:
    program(warm, 'os.environ["SETTING"] = sys.argv[1]')
    for number in range(8):
        out, error = run(warm, str(number))
        assert out == f"('{number}', True)\n"
    assert error == ''
    why = 'nothing is imported in advance: it sets SETTING to something else in every run'
    assert why in output(warm.warm('--explain', 'app.py'))[1]
    assert {words[3] for words in warm.listed()} == {'0'}


def test_a_folder_in_front_of_the_libraries(warm: Bench) -> None:
    program(warm, 'sys.path.insert(0, "lib")')
    warm.write('lib/own.py', '')
    warm.warm_up('app.py')
    assert run(warm) == ('(None, True)\n', '')
    warm.write('lib/toylib/__init__.py', '')
    warm.write('lib/toylib/part.py', 'value = "own"\n')
    out, error = run(warm)
    assert out == 'own\n'
    assert 'comes before what libraries import as toylib' in error


def test_a_module_put_into_sys_modules(warm: Bench) -> None:
    program(warm, '')
    warm.warm_up('app.py')
    program(warm, 'import types; sys.modules["toylib.part"] = types.SimpleNamespace(value="stub")')
    out, error = run(warm)
    assert out == output(warm.python('app.py'))[1]
    assert 'it puts a module toylib.part of its own into sys.modules' in error


def test_what_the_program_does_not_import_is_not_there(warm: Bench) -> None:
    program(warm, '')
    warm.warm_up('app.py')
    warm.write(
        'app.py', 'import sys\nprint("toylib" in sys.modules)\nimport toylib\nprint("toylib.part" in sys.modules)\n'
    )
    assert run(warm) == ('False\nTrue\n', '')


def test_asking_for_a_library_without_importing_it(warm: Bench) -> None:
    program(warm, '')
    warm.warm_up('app.py')
    warm.write(
        'app.py',
        'import importlib.util as u, os, sys\nprint(u.find_spec("toylib").origin)\nimport toylib.part\n'
        'print(toylib.__spec__, toylib.__loader__.__class__, sys.meta_path[0])\n'
        'print(toylib is sys.modules["toylib"], toylib.part.value)',
    )
    assert output(warm.warm('app.py')) == output(warm.python('app.py'))


def test_a_module_beside_the_program_that_only_a_parent_imports(bench: Bench) -> None:
    bench.write('app.py', 'import copy, os\nprint(os.path.basename(os.path.dirname(copy.__file__)))')
    bench.write('copy.py', '')
    code, out, error = output(bench.warm('app.py'))
    assert (code, out) == (0, 'work\n')
    assert f'{bench.work}{os.sep}copy.py comes before' in error
