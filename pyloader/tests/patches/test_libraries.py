"""The table against the installed libraries, patched before and after they are imported."""

from __future__ import annotations

import importlib.util

import pytest

from overmind.patches.table import POINTS

LIBRARIES = (
    'torch', 'transformers', 'diffusers', 'safetensors', 'torchvision', 'timm', 'open_clip', 'peft',
    'sentence_transformers',
)  # fmt: skip
IMPORTS = """
import importlib, importlib.util
for name in {modules!r}:
    if importlib.util.find_spec(name.partition('.')[0]):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as e:
            print('SKIPPED', name, e)
have = {{n for n in {libraries!r} if n in sys.modules}}
"""
CHECKS = """
import inspect, pickle, types

def bound(fn, cls, name):
    assert fn is not None and types.MethodType is type(fn) and fn.__self__ is cls, fn
    calls.clear()
    assert fn('some/path', subfolder='x')[0] == 'cached', fn
    original, args, kwargs = calls[0]
    assert type(original) is types.MethodType and original.__self__ is cls and args == ('some/path',), original
    assert patches.unwrapped(original) == original and len(calls) == 1
    assert patches.unwrapped(fn) in (original, fn)      # fn: an override that only calls what it overrides
    assert original.__name__ == fn.__name__ == name and inspect.signature(original) is not None
    assert pickle.loads(pickle.dumps(fn)) == fn

def plain(fn, *args, **kwargs):
    calls.clear()
    assert fn(*args, **kwargs)[0] == 'cached', fn
    original = calls[0][0]
    assert original is fn.__wrapped__ and patches.unwrapped(fn) is original and calls[0][1:] == (args, kwargs)
    assert inspect.signature(fn) == inspect.signature(original) and fn.__module__ == original.__module__
    return original

def check_torch():
    import torch
    assert torch.load is torch.serialization.load and torch.jit.load is torch.jit._serialization.load
    plain(torch.load, 'x', weights_only=False), plain(torch.jit.load, 'x'), plain(torch.export.load, 'x')
    assert pickle.loads(pickle.dumps(torch.load)) is torch.load

def check_safetensors():
    import safetensors.torch
    plain(safetensors.torch.load_file, 'x', device='cpu')

def check_transformers():
    import transformers as t
    from transformers import pipeline
    assert pipeline is t.pipeline is t.pipelines.pipeline
    plain(pipeline, 'text-classification', model='x')
    for name in ('PreTrainedModel', 'BertModel', 'PreTrainedTokenizerBase', 'AutoModel', 'AutoModelForCausalLM',
                 'AutoModelForSequenceClassification', 'AutoBackbone', 'AutoTokenizer', 'AutoProcessor',
                 'CLIPProcessor', 'AutoImageProcessor', 'AutoFeatureExtractor', 'AutoVideoProcessor', 'ProcessorMixin',
                 'ImageProcessingMixin', 'FeatureExtractionMixin', 'CLIPTokenizer', 'Wav2Vec2FeatureExtractor'):
        cls = getattr(t, name)
        if not hasattr(type(cls), '_from_config') and hasattr(cls, 'from_pretrained'):
            bound(cls.from_pretrained, cls, 'from_pretrained')
    class Own(t.BertModel):
        @classmethod
        def from_pretrained(cls, *args, **kwargs):
            return super().from_pretrained(*args, **kwargs)
    calls.clear()
    Own.from_pretrained('x')
    assert calls[0][0].__self__ is Own and patches.unwrapped(Own.from_pretrained) == Own.from_pretrained
    for cls in t.AutoConfig, t.GenerationConfig, t.BertConfig:
        assert patches.unwrapped(cls.from_pretrained) == cls.from_pretrained

def check_diffusers():
    import diffusers as d
    for name in ('ModelMixin', 'UNet2DConditionModel', 'AutoModel', 'DiffusionPipeline', 'StableDiffusionPipeline',
                 'AutoPipelineForText2Image', 'AutoPipelineForImage2Image', 'AutoPipelineForInpainting',
                 'DDIMScheduler'):
        bound(getattr(d, name).from_pretrained, getattr(d, name), 'from_pretrained')
    bound(d.StableDiffusionPipeline.from_single_file, d.StableDiffusionPipeline, 'from_single_file')
    bound(d.UNet2DConditionModel.from_single_file, d.UNet2DConditionModel, 'from_single_file')

def check_torchvision():
    import torchvision
    m = torchvision.models
    assert m.resnet18 is m.resnet.resnet18 is m.get_model_builder('resnet18')
    assert m.resnet50 is m.segmentation.deeplabv3.resnet50
    assert m.quantization.resnet18 is m.get_model_builder('quantized_resnet18') is not m.resnet18
    plain(m.resnet18, weights='DEFAULT'), plain(m.resnet18, m.ResNet18_Weights.DEFAULT)
    plain(m.detection.fasterrcnn_resnet50_fpn, weights='DEFAULT')
    calls.clear()
    assert m.get_model('vgg16', weights='DEFAULT')[0] == 'cached' and calls[0][0] is m.vgg16.__wrapped__
    calls.clear()
    assert type(m.squeezenet1_1(weights=None)).__name__ == type(m.squeezenet1_1()).__name__ == 'SqueezeNet'
    assert not calls and m.get_model_weights('resnet18') is m.ResNet18_Weights
    assert 'resnet18' in m.list_models(module=m) and 'quantized_resnet18' in m.list_models(module=m.quantization)

def check_timm():
    import timm
    assert timm.create_model is timm.models.create_model
    plain(timm.create_model, 'resnet18', pretrained=True), plain(timm.create_model, 'resnet18', True)
    plain(timm.create_model, 'resnet18', checkpoint_path='x')
    calls.clear()
    assert type(timm.create_model('test_vit', False)).__name__ == 'VisionTransformer' and not calls

def check_open_clip():
    import open_clip
    assert open_clip.create_model_and_transforms is open_clip.factory.create_model_and_transforms
    plain(open_clip.create_model_and_transforms, 'x', pretrained='y')
    plain(open_clip.create_model_from_pretrained, 'x')

def check_peft():
    import peft
    bound(peft.PeftModel.from_pretrained, peft.PeftModel, 'from_pretrained')
    bound(peft.AutoPeftModelForCausalLM.from_pretrained, peft.AutoPeftModelForCausalLM, 'from_pretrained')

def check_sentence_transformers():
    from sentence_transformers import SentenceTransformer as cls
    calls.clear()
    assert cls('x', device='cpu')[0] == cls(model_name_or_path='x')[0] == 'cached'
    assert calls == [(cls, ('x',), {'device': 'cpu'}), (cls, (), {'model_name_or_path': 'x'})]
    assert patches.unwrapped(cls) is cls and list(inspect.signature(cls).parameters)[0] == 'model_name_or_path'

for name in sorted(have):
    globals()['check_' + name]()
"""
STATE = """
def ours(value):
    fn = getattr(value, '__func__', value)
    return patches.unwrapped(fn) is not fn

def state():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition('.')[0] not in have or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                found[name, key] = value
            elif isinstance(value, type) and value.__module__.partition('.')[0] in have:
                for k, v in list(vars(value).items()):
                    if isinstance(v, (classmethod, staticmethod, types.FunctionType)):
                        found[value.__module__, value.__qualname__, k] = v
    registry = getattr(sys.modules.get('torchvision.models._api'), 'BUILTIN_MODELS', {})
    return {**found, **{('registry', k): v for k, v in registry.items()}}
"""


@pytest.fixture(scope='module')
def imports() -> str:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing == list(LIBRARIES):
        pytest.skip('none of the libraries is installed')
    modules = [*dict.fromkeys(name for p in POINTS for name in (*p.aliases, p.module))]
    return IMPORTS.format(modules=modules, libraries=LIBRARIES)


def test_patched_first(run, imports):
    run('patches.monkey_patch_all()\n' + imports + CHECKS)


def test_imported_first_and_restored(run, imports):
    script = """
before = state()
patches.monkey_patch_all()
changed = {k for k, v in state().items() if before.get(k, v) is not v}
print('CHANGED', len(changed))
assert len(changed) > 30
"""
    after = """
patches.unpatch_all()
after = state()
assert not [k for k, v in before.items() if after[k] is not v]
calls.clear()
try:
    sys.modules['torch'].load('/nowhere')
except FileNotFoundError:
    pass
assert not calls and not [k for k, v in after.items() if ours(v)]
"""
    run('import types\n' + imports + STATE + script + CHECKS + after)


def test_restored_when_the_libraries_took_our_functions_over(run, imports):
    run(
        'import types\npatches.monkey_patch_all()\n'
        + imports
        + """
import transformers
transformers.pipeline
patches.unpatch_all()
"""
        + STATE
        + """
left = [k for k, v in state().items() if ours(v)]
# Private imports (from torch.serialization import load as ...) keep a wrapper, which does nothing any more.
names = {'load', 'load_file', 'safe_load_file', 'load_safetensors_file', 'torch_load', 'create_model_from_pretrained'}
assert not [k for k in left if k[-1] not in names], left
assert not {('torch', 'load'), ('torch.jit', 'load'), ('transformers', 'pipeline')} & set(left)
"""
    )


def test_pipeline_of_the_lazy_module_cached_before(run, imports):
    if importlib.util.find_spec('transformers') is None:
        pytest.skip('transformers is not installed')
    run("""
import transformers
original = transformers.pipeline
patches.monkey_patch_all()
assert transformers.pipeline is transformers.pipelines.pipeline is not original
from transformers import pipeline
assert pipeline('x')[0] == 'cached'
patches.unpatch_all()
assert transformers.pipeline is transformers.pipelines.pipeline is original
""")
