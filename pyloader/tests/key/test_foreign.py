"""Values of torch, numpy, transformers and diffusers."""

import pytest

from overmind.errors import Unkeyable
from overmind.key.canonical import Encoder, no_reference

torch = pytest.importorskip('torch')
np = pytest.importorskip('numpy')


def enc(value):
    return Encoder(no_reference).encode(value)


def test_torch_and_numpy():
    t = torch.arange(6.0)
    values = [
        torch.float16, torch.bfloat16, torch.device('cpu'), torch.device('cuda'), torch.device('cuda:0'),
        torch.device('cuda:1'), torch.strided, torch.sparse_coo, torch.channels_last, torch.contiguous_format,
        torch.Size([1, 2]), (1, 2), t, t + 1, t.double(), t.reshape(2, 3), t.reshape(3, 2).t(), torch.nn.Parameter(t),
        torch.tensor(1.0), torch.empty(0), torch.tensor([1j]), torch.tensor([1j]).conj(), np.float32(1), np.float64(1),
        1.0, np.dtype('f4'), np.dtype('i4'), np.arange(3), np.arange(3.0), np.float32, torch.relu, torch.nn.Linear,
        'float16', np.add,
    ]  # fmt: skip
    found = [enc(v) for v in values]
    assert len(set(found)) == len(values)
    assert found == [enc(v) for v in values]
    assert enc(t) == enc(t.clone())


@pytest.mark.parametrize(
    ('value', 'words'),
    [
        (torch.nn.Linear(1, 1), 'Linear did not come from the cache'),
        (torch.empty(1 << 19), 'tensor of 2097152 bytes'),
        (torch.empty(1, device='meta'), 'did not come'),
        (torch.eye(2).to_sparse(), 'did not come'),
        (torch.ones(1, requires_grad=True) * 2, 'autograd graph'),
        (np.array([object()]), 'objects'),
        (torch, 'the Python module torch cannot be compared'),
    ],
)
def test_refused(value, words):
    with pytest.raises(Unkeyable, match=words):
        enc(value)


def test_configs():
    transformers = pytest.importorskip('transformers')
    values = [
        transformers.BertConfig(hidden_size=32), transformers.BertConfig(hidden_size=64),
        transformers.BertConfig(hidden_size=32, attn_implementation='eager'),
        transformers.BitsAndBytesConfig(load_in_8bit=True), transformers.BitsAndBytesConfig(load_in_4bit=True),
        transformers.GenerationConfig(max_length=3), transformers.GenerationConfig(max_length=4),
        transformers.CLIPConfig(), transformers.AddedToken('x'), transformers.AddedToken('x', lstrip=True),
    ]  # fmt: skip
    assert len({enc(v) for v in values}) == len(values)
    assert enc(transformers.BertConfig(hidden_size=32)) == enc(transformers.BertConfig(hidden_size=32))


def test_diffusers_config():
    diffusers = pytest.importorskip('diffusers')
    one, two = diffusers.DDIMScheduler().config, diffusers.DDIMScheduler(num_train_timesteps=10).config
    assert enc(one) == enc(diffusers.DDIMScheduler().config) != enc(two)


def test_torchao_and_peft():
    peft = pytest.importorskip('peft')
    assert enc(peft.LoraConfig(r=4)) == enc(peft.LoraConfig(r=4)) != enc(peft.LoraConfig(r=8))
    quantization = pytest.importorskip('torchao.quantization')
    transformers = pytest.importorskip('transformers')
    make = transformers.TorchAoConfig
    assert enc(make(quantization.Int8WeightOnlyConfig())) != enc(make(quantization.Int4WeightOnlyConfig()))
