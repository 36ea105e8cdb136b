"""What a user writes for each workload: imports, and a load. Nothing here knows any cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integration import program
from integration.bench import unpickling
from integration.checkpoints.configs import SINGLE_FILE, SINGLE_FILE_CONFIG

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Load:
    """Imports of a program, and its load from a checkpoint as a dtype."""

    imports: Callable[[], None]
    load: Callable[[Path, torch.dtype], Any]


def _import_stable_diffusion() -> None:
    import torch  # noqa: F401
    from diffusers import StableDiffusionPipeline  # noqa: F401


def _import_llama() -> None:
    import torch  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401


def _import_bitsandbytes() -> None:
    import bitsandbytes  # noqa: F401
    from transformers import BitsAndBytesConfig  # noqa: F401

    _import_llama()


def _controlnets(folder: Path, dtype: torch.dtype) -> Any:
    return program.load(folder, dtype)[0]


def _controlnets_without_tokenizer(folder: Path, dtype: torch.dtype) -> Any:
    return program.load(folder, dtype, tokenizer=None)[0]


def _single_file(folder: Path, dtype: torch.dtype) -> Any:
    from diffusers import StableDiffusionPipeline

    config = str(folder / SINGLE_FILE_CONFIG)
    return StableDiffusionPipeline.from_single_file(str(folder / SINGLE_FILE), config=config, torch_dtype=dtype)


def _llama(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(str(folder), dtype=dtype, **options)


def _int8(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_8bit=True)
    return _llama(folder, dtype, quantization_config=config, device_map='cpu')


def _nf4(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return _llama(folder, dtype, quantization_config=config, device_map='cpu')


LOADS = {
    'controlnets': Load(program.import_libraries, _controlnets),
    'controlnets-without-tokenizer': Load(program.import_libraries, _controlnets_without_tokenizer),
    'single-file': Load(_import_stable_diffusion, _single_file),
    'llama': Load(_import_llama, _llama),
    'int8': Load(_import_bitsandbytes, _int8),
    'nf4': Load(_import_bitsandbytes, _nf4),
}


# ---- tensors alone: files to a dictionary, on the CPU


def _files(folder: Path, pattern: str) -> list[str]:
    return [str(path) for path in sorted(folder.rglob(pattern))]


def _load_file(folder: Path, _: torch.dtype) -> Any:
    from safetensors.torch import load_file

    return {path: load_file(path) for path in _files(folder, '*.safetensors')}


def _torch_load(mapped: bool) -> Callable[[Path, Any], Any]:
    def load(folder: Path, _: torch.dtype) -> Any:
        import torch

        return {path: torch.load(path, mmap=mapped, weights_only=True) for path in _files(folder, '*.bin')}

    return load


def _streamed(folder: Path, _: torch.dtype) -> Any:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(_files(folder, '*.safetensors'))
        return {str(number): tensor for number, (_, tensor) in enumerate(streamer.get_tensors())}


def _fastsafetensors(folder: Path, _: torch.dtype) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    tensors = {}
    for path in _files(folder, '*.safetensors'):
        loader = SafeTensorsFileLoader(SingleGroup(), 'cpu', nogds=True)
        loader.add_filenames({0: [path]})
        buffers = loader.copy_files_to_device()
        # They live as long as what they point into.
        tensors[path] = [buffers.get_tensor(name) for name in loader.get_keys()]
        tensors[f'{path} '] = [buffers, loader]
    return tensors


def _flashpack(folder: Path, _: torch.dtype) -> Any:
    import torch
    from flashpack.deserialization import iterate_from_flash_tensor, read_flashpack_file

    (path,) = _files(folder, '*.flashpack')
    storage, meta = read_flashpack_file(path, device='cpu')
    return {name: torch.as_tensor(tensor) for name, tensor in iterate_from_flash_tensor(storage, meta)}


def pack(source: Path, target: Path) -> None:
    """Convert safetensors files for flashpack, which reads no other format."""
    from flashpack import pack_to_file
    from safetensors.torch import load_file

    weights = {}
    for path in _files(source, '*.safetensors'):
        weights.update(load_file(path))
    target.mkdir(parents=True, exist_ok=True)
    pack_to_file(weights, str(target / 'weights.flashpack'), None)


def _importing(*names: str) -> Callable[[], None]:
    def imports() -> None:
        for name in ('torch', *names):
            __import__(name)

    return imports


def _import_all() -> None:
    program.import_libraries()
    _import_stable_diffusion()
    _import_llama()
    unpickling.get_ready()


def _unpickled(folder: Path, dtype: torch.dtype) -> Any:
    return unpickling.read(folder)


TENSOR_LOADS = {
    'load_file': Load(_importing('safetensors.torch'), _load_file),
    'torch.load': Load(_importing(), _torch_load(mapped=False)),
    'torch.load-mmap': Load(_importing(), _torch_load(mapped=True)),
    'runai': Load(_importing('runai_model_streamer'), _streamed),
    'fastsafetensors': Load(_importing('fastsafetensors'), _fastsafetensors),
    'flashpack': Load(_importing('flashpack.deserialization'), _flashpack),
    'unpickled': Load(_import_all, _unpickled),
}


# ---- the memory of a result


def _tensors(result: Any) -> Iterator[Any]:
    import torch

    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, torch.nn.Module):
        yield from result.parameters()
        yield from result.buffers()
    elif isinstance(result, dict):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, list):
        for value in result:
            yield from _tensors(value)
    elif hasattr(result, 'components'):
        yield from _tensors(result.components)


def storages(result: Any) -> dict[int, torch.UntypedStorage]:
    """Every storage of a module, a pipeline, or a collection of tensors, by address."""
    found = [tensor.untyped_storage() for tensor in _tensors(result)]
    return {storage.data_ptr(): storage for storage in found if storage.nbytes()}
