"""The key under which a call's result is looked up, computed before anything is loaded."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from overmind.errors import Unkeyable
from overmind.key import hub
from overmind.key.canonical import Encoder, Reference
from overmind.key.origin import common_name, is_first_party
from overmind.key.readable import readable
from overmind.key.signatures import signature_of
from overmind.key.wire import pack_all, text

# Another one where older loaders cannot read a structure.pkl of this one: they and this one then have entries apart.
FORMAT = '5'

# Read by the libraries while they load, each found in their sources, and able to change what comes back.
ENVIRONMENT = (
    'ACCELERATE_USE_FSDP', 'ACCELERATE_USE_DEEPSPEED', 'FSDP_CPU_RAM_EFFICIENT_LOADING',  # transformers: meta weights
    'DIFFUSERS_ATTN_BACKEND', 'DIFFUSERS_DISABLE_REMOTE_CODE', 'DIFFUSERS_SDNQ_TRANSFORMERS', '_CHECK_PEFT',
    'USE_HUB_KERNELS', 'TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR', 'USE_SAFETENSORS', 'USE_TORCH',
    'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', 'TORCH_HOME', 'XLA_USE_BF16',
    'XLA_DOWNCAST_BF16', 'HF_ENDPOINT', 'HF_MODULES_CACHE', 'SENTENCE_TRANSFORMERS_HOME',
)  # fmt: skip
# With these arguments the rank of the process decides what is loaded.
_SHARDING = ('tp_plan', 'tp_size', 'device_mesh', 'distributed_config')
_RANKS = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')

# Arguments of library loaders that say how a file is fetched, never what is in it.
_FETCHING = frozenset({'token', 'use_auth_token', 'proxies', 'resume_download'})
_FETCHERS = frozenset({'from_pretrained', 'from_single_file', 'pipeline', 'load_lora_weights'})
# Takes a hub name without an organization for one of its own, and by default the GPU of its rank.
_SENTENCE = (
    'sentence_transformers.sentence_transformer.model:SentenceTransformer',
    'sentence_transformers.SentenceTransformer:SentenceTransformer',  # before 5.4
)
_PROGRESS = frozenset({'load_state_dict_from_url'})
# Folders that a loader writes to or fetches into: their content is not an input as such.
_SCRATCH = frozenset({'cache_dir', 'cache_folder', 'offload_folder', 'offload_dir', 'local_dir'})

_KIND: dict[object, bytes] = {
    inspect.Parameter.VAR_POSITIONAL: b'*',
    inspect.Parameter.VAR_KEYWORD: b'k',
}


class LookupKey(NamedTuple):
    """A key and what went into it.

    ``facts`` are names and short readable values in the order in which they were hashed. ``scope`` stays the same when
    only the commit of a hub name changes: nobody asks for an older entry of the same scope again, and it goes. (It
    covers the code of one's own functions: two of the same name may be in use side by side.) ``paths`` are the files
    and folders among the arguments, and the snapshot folders of hub names.
    """

    digest: str
    id: str
    facts: list[tuple[str, str]]
    class_name: str
    model_name: str
    loader: str
    scope: str
    paths: list[str]
    hub_unresolved: bool


@dataclass(slots=True)
class _Hash:
    """Facts in order, hashed with their names."""

    parts: list[bytes] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, data: bytes, readable: str) -> None:
        self.parts.append(pack_all(b'=', (text(name), data)))
        self.facts.append((name, readable))

    def say(self, name: str, value: str) -> None:
        self.add(name, text(value), value)

    def digest(self) -> str:
        return hashlib.sha256(b''.join(self.parts)).hexdigest()


def lookup(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], reference: Reference) -> LookupKey:
    """The key of ``fn(*args, **kwargs)``; raises Unkeyable."""
    while type(fn) is functools.partial:
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    out = _Hash()
    encoder = Encoder(reference)
    loader, bound, own = _identify(fn)
    out.say('key format', FORMAT)
    out.say('loader', loader)
    if bound is not None:
        data = _encode(encoder, 'bound to', bound)
        out.add('bound to', data, readable(bound, data, encoder))
    if own:
        data = _encode(encoder, 'loader', fn)
        out.add('code', data, hashlib.sha256(data).hexdigest()[:16])

    encoder.paths.clear()
    encoder.names.clear()
    paths: list[str] = []
    named = _bind(fn, args, kwargs)
    sentence = loader in _SENTENCE
    fetches = sentence or loader.rpartition('.')[2] in _FETCHERS or loader == 'transformers:pipeline'
    dropped = _FETCHING if fetches else frozenset()
    if loader.rpartition(':')[2] in _PROGRESS:
        dropped = frozenset({'progress'})
    first: object = None
    for i, (kind, name, value) in enumerate(named):
        if i == 0:
            first = value
        if name in dropped and not own:
            continue
        before = len(encoder.paths)
        data = _encode(encoder, f'argument {name}', value)
        found = encoder.paths[before:] if isinstance(value, (str, os.PathLike)) else []
        shown = '(hidden)' if _SECRET.search(name) else readable(found[0] if found else value, data, encoder)
        out.add(f'argument {name}', kind + data, shown)
        if name not in _SCRATCH:
            paths += encoder.paths[before:]
    before_hub = len(out.parts)
    unresolved, repositories = _hub(out, encoder.names, kwargs, first, loader)
    after_hub = len(out.parts)
    place = paths[0] if paths else repositories[0].name if repositories else ''
    paths += [r.snapshot for r in repositories if r.snapshot]
    _surroundings(out, kwargs, sentence)

    scope_digest = hashlib.sha256(b''.join(out.parts[:before_hub] + out.parts[after_hub:])).hexdigest()[:12]

    class_name = bound.__qualname__ if isinstance(bound, type) else loader.rpartition(':')[2]
    model_name = _model_name(paths, repositories)
    digest = out.digest()
    return LookupKey(
        digest=digest,
        id=_identifier(class_name, model_name, digest),
        facts=out.facts,
        class_name=class_name,
        model_name=model_name,
        loader=loader,
        scope=f'{loader}|{class_name}|{place}|{scope_digest}',
        paths=list(dict.fromkeys(paths)),
        hub_unresolved=unresolved,
    )


def _encode(encoder: Encoder, where: str, value: object) -> bytes:
    return encoder.encode(value, where)


# ---- who is called


def _identify(fn: Any) -> tuple[str, Any, bool]:
    """Qualified name of a loader, what it is bound to, and whether its code is the user's own."""
    bound = None
    target = fn
    if isinstance(fn, types.MethodType):
        bound, target = fn.__self__, fn.__func__
    elif not isinstance(fn, (types.FunctionType, type, types.BuiltinFunctionType)) and not _is_callable_name(fn):
        bound, target = fn, type(fn).__call__
    elif isinstance(getattr(fn, '__self__', None), type):
        bound = fn.__self__
    module, qualname = getattr(target, '__module__', None), getattr(target, '__qualname__', None)
    if module is None and bound is not None:
        module = getattr(bound, '__module__', None)
    if not qualname:
        raise Unkeyable(f'loader: {type(fn).__qualname__} has no name')
    scope = getattr(target, '__globals__', None)
    owner = scope.get('__name__', module) if isinstance(scope, dict) else module
    own = bool(module and is_first_party(module)) or bool(owner and is_first_party(owner))
    # A local function of a library may close over anything; its name says too little.
    return f'{common_name(str(module))}:{qualname}', bound, own or '<locals>' in qualname


def _is_callable_name(fn: Any) -> bool:
    return type(fn).__module__ == 'builtins' and hasattr(fn, '__qualname__')


# ---- arguments by parameter


def _bind(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[bytes, str, Any]]:
    """Kind, name and value of each argument; the order is the one of the parameters, then of sorted names."""
    signature, skip = signature_of(fn)
    if signature is None:
        found = [(b'*', 'args', tuple(args))] if args else []
        return found + [(b'k', name, kwargs[name]) for name in sorted(kwargs)]
    try:
        bound = signature.bind(*(None,) * skip, *args, **kwargs).arguments
    except TypeError as e:
        raise Unkeyable(f'the call does not fit {getattr(fn, "__qualname__", fn)}: {e}') from None
    found = []
    rest: Mapping[str, Any] = {}
    for i, (name, parameter) in enumerate(signature.parameters.items()):
        if name not in bound:
            continue
        value = bound[name]
        if i < skip:
            if parameter.kind is not inspect.Parameter.VAR_POSITIONAL or not value[skip:]:
                continue
            value = value[skip:]  # f(*args), where the first one is what it is bound to
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            rest = value
        else:
            found.append((_KIND.get(parameter.kind, b'p'), name, value))
    return found + [(b'k', name, rest[name]) for name in sorted(rest)]


# ---- hub


def _hub(
    out: _Hash, names: list[str], kwargs: Mapping[str, Any], first: object, loader: str
) -> tuple[bool, list[hub.Repository]]:
    """Adds the commit of every hub name among the strings; also whether the loader's own name is not in the cache."""
    folders: list[str] | None = None
    found: dict[str, hub.Repository] = {}
    revisions = {'main'}
    for key in ('revision', 'code_revision', 'custom_revision'):
        if isinstance(kwargs.get(key), str):
            revisions.add(kwargs[key])
    main = kwargs.get('revision') if isinstance(kwargs.get('revision'), str) else 'main'
    ours, sentence = False, loader in _SENTENCE
    for value in dict.fromkeys(names):
        name = hub.repository_name(value)
        if name is None:
            continue
        if folders is None:
            folders = hub.cache_folders(_cache_folder(kwargs, sentence))
        # Should the loader look at main all the same, its ref is among the files that it reads.
        pinned = value == first and main != 'main' and (sentence or loader.endswith('.from_pretrained'))
        for revision in sorted(revisions - {'main'} if pinned else revisions):
            repository = hub.resolve(name, revision, folders)
            if repository is None and sentence and value == first and '/' not in name:
                repository = hub.resolve(f'sentence-transformers/{name}', revision, folders)
            if repository is None:
                break
            if revision == main:
                found[name] = repository
                ours = ours or (value == first and bool(repository.commit))
            out.say(f'hub {name}@{revision}', repository.commit)
    wanted = isinstance(first, str) and first in names and hub.repository_name(first) is not None
    return wanted and not ours and (sentence or loader.endswith('.from_pretrained')), list(found.values())


def _cache_folder(kwargs: Mapping[str, Any], sentence: bool) -> object:
    if sentence:
        return kwargs.get('cache_folder') or os.environ.get('SENTENCE_TRANSFORMERS_HOME')
    return kwargs.get('cache_dir')


# ---- the process

_PLATFORM = (
    ('python', f'{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}'),
    ('machine', f'{platform.machine()} {sys.byteorder}'),
)


def _surroundings(out: _Hash, kwargs: Mapping[str, Any], sentence: bool) -> None:
    for name, value in _PLATFORM:
        out.say(name, value)
    for name, value in _torch_state():
        out.say(name, value)
    allowed = _allowed()
    if allowed:
        out.say('classes allowed in torch.load', allowed)
    env = os.environ
    for name in ENVIRONMENT:
        if name in env:
            out.say(f'environment {name}', env[name])
    sharded = any(kwargs.get(name) is not None for name in _SHARDING) or kwargs.get('device_map') == 'auto'
    if sharded or (sentence and kwargs.get('device') is None):
        for name in _RANKS:
            if name in env:
                out.say(f'environment {name}', env[name])
    visible = env.get('CUDA_VISIBLE_DEVICES')
    if visible is not None:
        # Not which: workers on different GPUs share their entries.
        out.say('visible GPUs', str(len([x for x in visible.split(',') if x.strip() not in ('', '-1')])))


def _autocasts(torch: Any, device: str) -> bool:
    if device == 'cpu' and not hasattr(torch, 'get_autocast_dtype'):  # torch before 2.4
        return False
    return bool(torch.is_autocast_enabled(device))


def _torch_state() -> tuple[tuple[str, str], ...]:
    """Modes of torch that change what a loader makes; the values of a fresh torch where it is not loaded."""
    torch = sys.modules.get('torch')
    if torch is None or not hasattr(torch, 'get_default_dtype'):
        return _FRESH
    core = torch._C
    if getattr(core, '_len_torch_dispatch_stack', int)():
        raise Unkeyable('a torch dispatch mode is active')
    functions = getattr(core, '_len_torch_function_stack', int)()
    if functions:
        for i in range(functions):
            if type(core._get_function_stack_at(i)).__name__ != 'DeviceContext':
                raise Unkeyable(f'a torch function mode is active: {type(core._get_function_stack_at(i)).__name__}')
    device = str(torch.get_default_device()) if functions and hasattr(torch, 'get_default_device') else 'cpu'
    dtype = str(torch.get_default_dtype()).removeprefix('torch.')
    grad = 'inference' if torch.is_inference_mode_enabled() else 'on' if torch.is_grad_enabled() else 'off'
    casts = [d for d in ('cpu', 'cuda') if _autocasts(torch, d)]
    autocast = ' '.join(f'{d}:{torch.get_autocast_dtype(d)}' for d in casts) or 'off'
    module = torch.nn.Module
    building = f'{module.__init__.__qualname__} {module.register_parameter.__qualname__}'
    return (
        ('torch default dtype', dtype), ('torch default device', device), ('torch gradients', grad),
        ('torch autocast', autocast),
        ('torch module construction', building),  # accelerate's init_empty_weights replaces these
    )  # fmt: skip


def get_ready() -> None:
    """What the first key takes longer for than the next ones."""
    _allowed()
    for name in ('torch', 'transformers', 'diffusers'):  # symbolic links above their folders
        if name in sys.modules:
            is_first_party(name)


def _allowed() -> str:
    """The program's own classes among torch's safe globals: without them, torch.load refuses a file that has any.

    Those of libraries depend on which of them are imported already, and are safe by their own word.
    """
    global _only_libraries
    unpickler = sys.modules.get('torch._weights_only_unpickler')
    marked = getattr(unpickler, '_marked_safe_globals_set', None)  # another set whenever it changes
    if marked is not None and marked is _only_libraries:
        return ''
    known: dict[str, Any] = getattr(unpickler, '_get_user_allowed_globals', dict)()
    own = ' '.join(sorted(name for name, made in known.items() if is_first_party(made.__module__ or '')))
    _only_libraries = None if own else marked
    return own


_only_libraries: object = None


_FRESH = (
    ('torch default dtype', 'float32'), ('torch default device', 'cpu'), ('torch gradients', 'on'),
    ('torch autocast', 'off'), ('torch module construction', 'Module.__init__ Module.register_parameter'),
)  # fmt: skip


# ---- for people

# Facts end up in a file that others may read.
_SECRET = re.compile(r'token\b|_token|password|secret|api_?key|credential', re.IGNORECASE)
_UNFIT = re.compile(r'[^A-Za-z0-9._-]+')
_SNAPSHOT = re.compile(r'.*/models--([^/]+)/snapshots/[^/]+')


def _model_name(paths: list[str], repositories: list[hub.Repository]) -> str:
    if repositories and not (paths and paths[0] != repositories[0].snapshot):
        return repositories[0].name.rpartition('/')[2]
    if not paths:
        return ''
    match = _SNAPSHOT.fullmatch(paths[0])
    return match[1].rpartition('--')[2] if match else os.path.basename(paths[0])


def _identifier(class_name: str, model_name: str, digest: str) -> str:
    parts = [_UNFIT.sub('_', part)[:84].strip('._-') for part in (class_name, model_name)]
    return '-'.join([p for p in parts if p] + [digest[:12]])
