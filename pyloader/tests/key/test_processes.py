"""A key is the same in every process, whatever its hash seed, and whether torch is loaded yet or not."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
for name in sys.argv[1:]:
    __import__(name)
import collections
from overmind.key.lookup import lookup
Point = collections.namedtuple('Point', 'x y')
NAMES = {'b', 'a', 'c', 1, 2.5}
class Base:
    names = NAMES
def helper(x): return {x, *NAMES}, Point, Base
def make(path, options=None): return helper(path), json
key = lookup(make, ('/x',), {'options': {'s': {'q', 'w', 'e'}, 'f': frozenset('xyz'), 'g': helper}}, lambda o: None)
print(json.dumps([key.digest, key.facts]))
"""


def run(*modules, seed='random'):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), PYTHONHASHSEED=seed)
    done = subprocess.run([sys.executable, '-', *modules], input=PROGRAM, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_hash_seed():
    assert run(seed='0') == run(seed='1') == run(seed='12345')


def test_torch_loaded_or_not():
    pytest.importorskip('torch')
    assert run() == run('torch')


def test_fork():
    from overmind.key.lookup import lookup

    def digest():
        return lookup(run, ('x',), {}, lambda o: None).digest

    here = digest()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, digest().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100).decode() == here
    os.close(read)
    os.close(write)


def test_import_loads_no_library():
    code = 'import sys, overmind.key.lookup, overmind.key.inputs, overmind.key.versions\nprint(*sys.modules)'
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    out = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=True).stdout
    tops = {m.partition('.')[0] for m in out.split()}
    assert not tops & {'torch', 'numpy', 'transformers', 'diffusers', 'safetensors', 'wrapt', 'cloudpickle'}
