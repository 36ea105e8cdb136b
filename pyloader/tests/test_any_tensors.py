"""Whatever tensors hang together in whatever way: hypothesis draws them, and all that can be asked is compared."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundtrip import roundtrip

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.int8, torch.int64,
    torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip
VIEWS = ('whole', 'half', 'steps', 'transposed', 'expanded', 'empty', 'conjugate', 'negative', 'bytes', 'detached')
KINDS = ('tensor', 'parameter', 'leaf', 'with gradient', 'with attribute')


def view(base: torch.Tensor, how: str) -> torch.Tensor:
    n = base.numel()
    if how == 'conjugate':
        return base.conj() if base.is_complex() else base
    if how == 'negative':
        return base.conj().imag if base.is_complex() else base
    return {
        'whole': lambda: base,
        'half': lambda: base[n // 2 :],
        'steps': lambda: base[::3],
        'transposed': lambda: base[: n // 2 * 2].reshape(-1, 2).t() if n > 1 else base,
        'expanded': lambda: base[:1].expand(3, 1) if n else base,
        'empty': lambda: base[n:],
        'bytes': lambda: base.view(torch.uint8) if base.dtype is not torch.bool else base,
        'detached': lambda: base.detach(),
    }[how]()


def as_kind(t: torch.Tensor, kind: str) -> torch.Tensor:
    can = t.is_floating_point() and t.dtype is not torch.float8_e4m3fn
    if kind == 'parameter':
        return torch.nn.Parameter(t, requires_grad=can)
    if kind == 'leaf' and can:
        return t.detach().requires_grad_()
    if kind == 'with gradient' and can:
        made = t.detach().clone().requires_grad_()
        made.grad = torch.ones_like(made)
        return made
    if kind == 'with attribute':
        made = t.detach()
        made.note = {'kept': made.dtype}  # type: ignore[attr-defined]
        return made
    return t


@st.composite
def drawn(draw: Any) -> list[torch.Tensor]:
    bases = []
    for n, dtype in draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(DTYPES)), min_size=1, max_size=3)):
        base = torch.arange(n, dtype=torch.float32)
        bases.append((base + 1j * base).to(dtype) if dtype.is_complex else base.to(dtype))
    picks = st.tuples(st.integers(0, 2), st.sampled_from(VIEWS), st.sampled_from(KINDS))
    made = [as_kind(view(bases[i % len(bases)], how), kind) for i, how, kind in draw(st.lists(picks, max_size=6))]
    again = draw(st.lists(st.integers(0, 5), max_size=3))
    return made + [made[i] for i in again if i < len(made)]


def facts(t: torch.Tensor) -> tuple[Any, ...]:
    return (
        type(t), t.dtype, t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.requires_grad,
        t.is_leaf, t.is_conj(), t.is_neg(), vars(t), None if t.grad is None else t.grad.tolist(),
        bytes(t.untyped_storage().tolist()), t.data_ptr() % 64 if t.numel() else 0,
    )  # fmt: skip


def together(tensors: list[torch.Tensor]) -> list[tuple[bool, bool]]:
    """For each pair: one object, one storage."""
    return [(a is b, a.untyped_storage()._cdata == b.untyped_storage()._cdata) for a in tensors for b in tensors]


@settings(max_examples=150, deadline=None)
@given(drawn())
def test_they_come_back(tensors: list[torch.Tensor]) -> None:
    back = roundtrip({'tensors': tensors})['tensors']
    assert [facts(t) for t in back] == [facts(t) for t in tensors]
    assert together(back) == together(tensors)
