"""How the driver is called, with a library of its name that writes down what it gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
  printf("register %zx %zx %u\n", (size_t)p, n, flags);
  fflush(stdout);
  return getenv("REFUSE") ? 801 : 0;
}
int cuMemHostUnregister(void *p) {
  printf("unregister %zx\n", (size_t)p);
  fflush(stdout);
  return 0;
}
int cuGetErrorName(int error, const char **name) {
  *name = error == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : 0;
  return 0;
}
"""
_PROGRAM = """
import contextlib
from types import SimpleNamespace
from overmind.gpu.layer import Cuda

stream = SimpleNamespace(wait_stream=lambda other: None)
one = lambda device: stream
cuda = SimpleNamespace(Stream=one, current_stream=one, device=lambda device: contextlib.nullcontext())
layer = Cuda(SimpleNamespace(cuda=cuda), 'cuda:0')
print(layer.register(0x7FFF12345000, 0x123456000), flush=True)
layer.unregister(0x7FFF12345000)
"""


def run(folder: Path, **env: str) -> list[str]:
    import overmind

    env |= {'LD_LIBRARY_PATH': str(folder), 'PYTHONPATH': str(Path(overmind.__file__).parents[1])}
    line = [sys.executable, '-c', _PROGRAM]
    return subprocess.run(line, env=env, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get('CC', 'cc'))
    if compiler is None:
        pytest.skip('no C compiler')
    folder = tmp_path_factory.mktemp('driver')
    line = [compiler, '-shared', '-fPIC', '-x', 'c', '-', '-o', str(folder / 'libcuda.so.1')]
    subprocess.run(line, input=_DRIVER, text=True, check=True)
    return folder


def test_addresses_sizes_and_flags(folder: Path) -> None:
    portable_and_read_only = 9
    wanted = [f'register 7fff12345000 123456000 {portable_and_read_only}', 'None', 'unregister 7fff12345000']
    assert run(folder) == wanted


def test_a_refusal_has_the_name_of_the_error(folder: Path) -> None:
    assert 'cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED' in run(folder, REFUSE='1')


def test_no_driver(tmp_path: Path) -> None:
    if run(tmp_path)[0] == 'None':
        pytest.skip('there is a driver')
    assert run(tmp_path) == ['libcuda.so.1 cannot be loaded']
