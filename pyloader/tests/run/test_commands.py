"""``--list``, ``--stop``, ``--explain``, limits, and what runs as plain python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from warmbench import PACKAGE, Bench, output

import overmind
from overmind.run.options import parse, why_plain


@pytest.mark.parametrize(
    ('line', 'options', 'program', 'arguments'),
    [
        ('app.py -m x', [], ['app.py'], ['-m', 'x']),
        ('-m mod -u', [], ['-m', 'mod'], ['-u']),
        ('-mmod x', [], ['-m', 'mod'], ['x']),
        ('-um mod x', ['-u'], ['-m', 'mod'], ['x']),
        ('-W error -Xdev -X utf8 app.py', ['-W', 'error', '-Xdev', '-X', 'utf8'], ['app.py'], []),
        ('-OWerror app.py a', ['-OWerror'], ['app.py'], ['a']),
        ('-B -- app.py', ['-B', '--'], ['app.py'], []),
        ('- x', [], ['-'], ['x']),
        ('-c pass x', [], ['-c', 'pass'], ['x']),
        ('', [], [], []),
    ],
)
def test_command_lines_are_split_as_python_does(
    line: str, options: list[str], program: list[str], arguments: list[str]
) -> None:
    call = parse(line.split())
    assert (call.options, call.program, call.arguments) == (options, program, arguments)


@pytest.mark.parametrize(
    ('line', 'environment', 'why'),
    [
        ('-c pass', {}, 'the option -c'),
        ('-i app.py', {}, 'the option -i'),
        ('-uI app.py', {}, 'the option -I'),
        ('-X importtime app.py', {}, 'the option -X importtime'),
        ('--version', {}, 'the option --version'),
        ('', {}, 'a program from standard input'),
        ('-', {}, 'a program from standard input'),
        ('-u -m', {}, 'the option -m without a module'),
        ('no_such_file.py', {}, 'there is no no_such_file.py'),
        ('-m x', {'PYTHONTRACEMALLOC': '1'}, 'PYTHONTRACEMALLOC is set'),
        ('-m x', {'PYTHONINSPECT': ''}, None),
        ('-Xdev -X utf8=0 -OO -W error -m x', {}, None),
    ],
)
def test_what_has_to_be_plain(line: str, environment: dict[str, str], why: str | None) -> None:
    assert why_plain(parse(line.split()), environment) == why


def test_plain_python_says_why_and_is_python(bench: Bench) -> None:
    for words in (('-c', 'import sys; print(sys.argv)', 'x'), ('-I', '-c', '1/0'), ('missing.py',)):
        code, out, error = output(bench.python(*words))
        first, _, rest = output(bench.warm(*words))[2].partition('\n')
        assert first.startswith('overmind run: as plain python: ')
        assert (*output(bench.warm(*words))[:2], rest) == (code, out, error)
    assert not bench.listed()


def test_the_command_starts_without_libraries(bench: Bench) -> None:
    """What has been imported when the run is handed over: nothing installed, and nothing that takes long."""
    bench.write('app.py', '')
    output(bench.warm('app.py'))
    code = (
        'import sys; from overmind.run import command, relay; sys.argv = ["overmind", "run", "app.py"]\n'
        'relay.Relay.run = lambda self: sys.exit(" ".join(sorted(sys.modules)))\ncommand.main()'
    )
    line = [sys.executable, '-I', '-S', '-c', f'import sys; sys.path.insert(0, {str(PACKAGE)!r}); {code}']
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=bench.work, env=bench.environment)
    names = set(done.stderr.split())
    assert 'overmind.run.client' in names, done.stderr
    assert {n.partition('.')[0] for n in names} - {'__main__'} <= {*sys.stdlib_module_names, 'overmind'}
    ours = {'overmind', 'overmind.private'} | {n for n in names if n.startswith('overmind.run')}
    assert {n for n in names if n.startswith('overmind')} == ours
    slow = 'argparse ast asyncio dataclasses hashlib importlib.metadata inspect json logging pathlib re subprocess'
    assert not names.intersection([*slow.split(), 'tempfile', 'threading', 'typing', 'warnings'])
    assert len(names) < 90


def test_list_and_stop(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    assert not bench.listed()
    bench.warm_up('app.py')
    [words] = bench.listed()
    assert words[2] == 'MiB'
    assert int(words[1]) > 0
    assert words[-1] == 'app.py'
    assert output(bench.warm('--stop')) == (0, '1 ended\n', '')
    assert not bench.listed()
    bench.wait_for(lambda: not bench.processes())
    assert output(bench.warm('app.py')) == (0, '', '')


def test_the_one_used_least_recently_goes(bench: Bench) -> None:
    for name in 'abc':
        bench.write(f'{name}.py', 'import toylib')
    env = {'OVERMIND_RUN_MAX': '2'}
    for name in ('a', 'b', 'a', 'c'):
        assert output(bench.warm(f'{name}.py', env=env)) == (0, '', '')
    bench.wait_for(lambda: sorted(words[-1] for words in bench.listed()) == ['a.py', 'c.py'])
    plain = output(bench.warm('a.py', env={'OVERMIND_RUN_MAX': '0'}))
    assert plain == (0, '', 'overmind run: as plain python: OVERMIND_RUN_MAX is 0\n')


def test_an_idle_parent_ends(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    assert output(bench.warm('app.py', env={'OVERMIND_RUN_IDLE': '0.2'})) == (0, '', '')
    bench.wait_for(lambda: not bench.processes())
    assert output(bench.warm('app.py')) == (0, '', '')


def test_bad_settings_are_named(bench: Bench) -> None:
    bench.write('app.py', '')
    code, _, error = output(bench.warm('app.py', env={'OVERMIND_RUN_IDLE': 'soon'}))
    assert code == 1
    assert error == "OVERMIND_RUN_IDLE='soon' is not a number of 0 or more\n"


def test_sockets_are_private(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    bench.warm('app.py')
    assert (bench.runtime / 'overmind-run').stat().st_mode & 0o777 == 0o700
    bench.warm('--stop')
    os.chmod(bench.runtime / 'overmind-run', 0o755)
    code, _, error = output(bench.warm('app.py'))
    assert code == 0
    assert 'is open to others (mode 0755)' in error
    os.chmod(bench.runtime / 'overmind-run', 0o700)


def test_usage_and_version(bench: Bench) -> None:
    assert output(bench.warm('--list', 'x')) == (2, '', 'overmind run: nothing may follow --list\n')
    for word, code, said in (
        ('nope', 2, "overmind: there is no command 'nope'; see overmind --help\n"),
        ('--version', 0, f'overmind {overmind.__version__}\n'),
    ):
        line = [sys.executable, '-c', 'from overmind.run.command import main; main()', word]
        env = {**os.environ, 'PYTHONPATH': str(PACKAGE)}
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (code, said)


def test_explain_of_a_plain_run(bench: Bench) -> None:
    assert output(bench.warm('--explain')) == (2, '', 'overmind run: --explain needs a program\n')
    assert output(bench.warm('--explain', '-c', 'pass')) == (0, 'as plain python: the option -c\n', '')
