"""Checkpoints on disk, of true size or tiny, without a network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from integration.checkpoints.configs import SIZES, Sizes
from integration.checkpoints.written import Written

_MARKER = 'complete.json'


def _folders(dtype: str) -> Callable[[Path, Sizes], Iterator[Written]]:
    def write(folder: Path, sizes: Sizes) -> Iterator[Written]:
        from integration.checkpoints.stable_diffusion import write_folders

        return write_folders(folder, sizes, dtype)

    return write


def _llama(pickled: bool) -> Callable[[Path, Sizes], Iterator[Written]]:
    def write(folder: Path, sizes: Sizes) -> Iterator[Written]:
        from integration.checkpoints.llama import write_llama

        return write_llama(folder, sizes, pickled)

    return write


def _single_file(folder: Path, sizes: Sizes) -> Iterator[Written]:
    from integration.checkpoints.stable_diffusion import write_single_file

    return write_single_file(folder, sizes)


# What can be built: Stable Diffusion with two ControlNets in half or single precision, or as a single file in half
# precision; a Llama in bfloat16, as safetensors or as a pickle.
KINDS: dict[str, Callable[[Path, Sizes], Iterator[Written]]] = {
    'fp16': _folders('fp16'),
    'fp32': _folders('fp32'),
    'llama': _llama(False),
    'llama-bin': _llama(True),
    'single-file': _single_file,
}


def _version(size: str, kind: str) -> str:
    """Changes whenever the files would come out otherwise."""
    digest = hashlib.sha256(f'{size} {kind}'.encode())
    for source in sorted(Path(__file__).parent.glob('*.py')):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def build(folder: Path, size: str = 'true', kind: str = 'fp16', report: Callable[[str], None] | None = None) -> Path:
    """Build the checkpoint, one of ``KINDS``, unless it is complete already."""
    say = report or (lambda text: print(text, file=sys.stderr, flush=True))
    marker, version = folder / _MARKER, _version(size, kind)
    if marker.exists() and json.loads(marker.read_text()).get('version') == version:
        return folder
    start = time.perf_counter()
    say(f'building the {size} {kind} checkpoint in {folder}')
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensors = nbytes = 0
    for written in KINDS[kind](folder, SIZES[size]):
        tensors, nbytes = tensors + written.tensors, nbytes + written.nbytes
        took = time.perf_counter() - start
        say(f'  {written.name}: {written.tensors} tensors, {written.nbytes / 1e6:,.1f} MB ({took:.1f} s)')
    # Pages that are not on disk yet would count as somebody's dirty memory later on.
    os.sync()
    facts = {'version': version, 'size': size, 'kind': kind, 'tensors': tensors, 'bytes': nbytes}
    marker.write_text(json.dumps(facts))
    say(f'  in all: {tensors:,} tensors, {nbytes / 1e9:.2f} GB, {time.perf_counter() - start:.1f} s')
    return folder
