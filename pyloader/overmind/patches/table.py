"""What is patched. A name that a version of a library lacks is skipped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

When = Callable[[tuple[Any, ...], dict[str, Any]], bool]
Namespace = dict[str, Any]


class Point(NamedTuple):
    """One attribute of a module, or one of a class in it."""

    module: str
    attribute: str  # 'function', 'Class.method', or 'Beginning*.method'
    aliases: tuple[str, ...] = ()  # modules that hold the same function under the same name
    when: When | None = None  # calls for which this is false go to the library at once
    places: Callable[[ModuleType], Iterable[tuple[Namespace, str]]] | None = None  # instead of the attribute
    source: str = ''  # the file of a user's own point
    constructor: bool = False  # the attribute is a class, and making an object of it is the load


def _given(*names: str, positional: tuple[str, ...] = ()) -> When:
    """True for calls in which one of the arguments is given and true."""

    def when(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return any(kwargs.get(name) for name in names) or any(
            value for name, value in zip(positional, args, strict=False) if name in names and _true(value)
        )

    return when


def _true(value: Any) -> bool:
    return value is not None and bool(value)


def _not_onloading(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """False for diffusers' group offloading, whose every forward reads its own scratch files."""
    caller = sys._getframe(2)  # past the wrapper, which calls this
    return caller.f_globals.get('__name__') != 'diffusers.hooks.group_offloading'


def _torchvision_builders(module: ModuleType) -> Iterable[tuple[Namespace, str]]:
    """Every place that holds a model builder: the registry (for get_model), its own module and those that import it."""
    registry: Namespace = sys.modules['torchvision.models._api'].__dict__['BUILTIN_MODELS']
    builders = {id(builder) for builder in registry.values()}
    prefix = module.__name__ + '.'
    loaded = [m for name, m in list(sys.modules.items()) if name.startswith(prefix) and isinstance(m, ModuleType)]
    for namespace in (registry, vars(module), *map(vars, loaded)):
        for name, value in list(namespace.items()):
            if id(value) in builders:
                yield namespace, name


_TIMM = ('model_name', 'pretrained', 'pretrained_cfg', 'pretrained_cfg_overlay', 'checkpoint_path')
_SENTENCE = 'model_name_or_path'
_AUTO = 'transformers.models.auto.'

POINTS: tuple[Point, ...] = (
    Point('diffusers.models.modeling_utils', 'ModelMixin.from_pretrained'),
    Point('diffusers.models.auto_model', 'AutoModel.from_pretrained'),
    Point('diffusers.pipelines.pipeline_utils', 'DiffusionPipeline.from_pretrained'),
    Point('diffusers.pipelines.auto_pipeline', 'AutoPipelineFor*.from_pretrained'),
    Point('diffusers.schedulers.scheduling_utils', 'SchedulerMixin.from_pretrained'),
    Point('diffusers.loaders.single_file', 'FromSingleFileMixin.from_single_file'),
    Point('diffusers.loaders.single_file_model', 'FromOriginalModelMixin.from_single_file'),
    Point('transformers.modeling_utils', 'PreTrainedModel.from_pretrained'),
    Point('transformers.tokenization_utils_base', 'PreTrainedTokenizerBase.from_pretrained'),
    Point('transformers.processing_utils', 'ProcessorMixin.from_pretrained'),
    Point('transformers.image_processing_base', 'ImageProcessingMixin.from_pretrained'),
    Point('transformers.video_processing_utils', 'BaseVideoProcessor.from_pretrained'),
    Point('transformers.feature_extraction_utils', 'FeatureExtractionMixin.from_pretrained'),
    # Up to version 4 every auto class has a copy of its base's function, made while modeling_auto is imported. Both are
    # patched after that, so that the copies are of the original.
    Point(_AUTO + 'modeling_auto', '_BaseAutoModelClass.from_pretrained'),
    Point(_AUTO + 'modeling_auto', '_BaseAutoBackboneClass.from_pretrained'),
    Point(_AUTO + 'modeling_auto', 'AutoModel*.from_pretrained'),
    Point(_AUTO + 'modeling_auto', 'AutoBackbone.from_pretrained'),
    Point(_AUTO + 'tokenization_auto', 'AutoTokenizer.from_pretrained'),
    Point(_AUTO + 'processing_auto', 'AutoProcessor.from_pretrained'),
    Point(_AUTO + 'image_processing_auto', 'AutoImageProcessor.from_pretrained'),
    Point(_AUTO + 'feature_extraction_auto', 'AutoFeatureExtractor.from_pretrained'),
    Point(_AUTO + 'video_processing_auto', 'AutoVideoProcessor.from_pretrained'),
    *(
        Point(module, 'SentenceTransformer', when=_given(_SENTENCE, positional=(_SENTENCE,)), constructor=True)
        for module in ('sentence_transformers.sentence_transformer.model', 'sentence_transformers.SentenceTransformer')
    ),
    Point('transformers.pipelines', 'pipeline', aliases=('transformers',)),
    Point('torch.serialization', 'load', aliases=('torch',)),
    Point('torch.jit._serialization', 'load', aliases=('torch.jit',)),
    Point('torch.export', 'load'),
    Point('safetensors.torch', 'load_file', when=_not_onloading),
    Point(
        'torchvision.models',
        '*',
        when=_given('weights', 'pretrained', positional=('weights',)),
        places=_torchvision_builders,
    ),
    Point(
        'timm.models._factory',
        'create_model',
        aliases=('timm', 'timm.models'),
        when=_given('pretrained', 'pretrained_cfg_overlay', 'checkpoint_path', positional=_TIMM),
    ),
    Point('open_clip.factory', 'create_model_and_transforms', aliases=('open_clip',)),
    Point('open_clip.factory', 'create_model_from_pretrained', aliases=('open_clip',)),
    Point('peft.peft_model', 'PeftModel.from_pretrained'),
    Point('peft.auto', '_BaseAutoPeftModel.from_pretrained'),
)
