"""CPython's own behaviour is the reference."""

from __future__ import annotations

import os

import pytest
from warmbench import Bench, output
from warmprograms import PROGRAMS


@pytest.mark.parametrize('name', PROGRAMS)
def test_output_and_exit_are_those_of_python(bench: Bench, name: str) -> None:
    program = PROGRAMS[name]
    bench.write('app.py', program.text)
    for file, text in program.files.items():
        bench.write(file, text)
    env = dict(program.env)
    if 'PYTHONPATH+' in env:
        env['PYTHONPATH'] = env.pop('PYTHONPATH+') + os.pathsep + bench.environment['PYTHONPATH']
    more = {'env': env} if program.stdin is None else {'env': env, 'input': program.stdin}
    expected = output(bench.python(*program.words, **more))
    for _ in range(2):  # the first run learns
        assert output(bench.warm(*program.words, **more)) == expected
