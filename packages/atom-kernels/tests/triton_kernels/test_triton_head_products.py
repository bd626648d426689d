"""Products of each head's rows with its own weight, from and into parts of wider tensors."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.attention.mla.triton_products import MAX_TOKENS, head_products
from atom_kernels.platform import detect_platform

DEVICE = detect_platform().device


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("num_tokens", "size", "num_outputs"), [(1, 24, 33), (17, 130, 16), (31, 64, 72)])
def test_products_equal_those_of_every_head_alone(num_tokens, size, num_outputs, turned, dtype):
    check(num_tokens, 3, size, num_outputs, turned, dtype)


def test_more_tokens_than_it_is_written_for_are_served():
    check(MAX_TOKENS + 1, 2, 16, 16, False, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 20, 32])
@pytest.mark.parametrize(("heads", "size", "num_outputs"), [(16, 128, 512), (16, 512, 128), (20, 192, 512)])
def test_shapes_of_real_models_agree_on_a_gpu(heads, size, num_outputs, num_tokens):
    check(num_tokens, heads, size, num_outputs, size > num_outputs, torch.bfloat16)


def check(num_tokens, heads, size, num_outputs, turned, dtype):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)

    x = random(num_tokens, heads, size + 8)[..., :size]
    shape = (heads, num_outputs, size) if turned else (heads, size, num_outputs)
    weight = random(*shape) * size**-0.5
    if turned:
        weight = weight.transpose(1, 2)
    wide = torch.full((num_tokens, heads, num_outputs + 5), 7.0, dtype=dtype, device=DEVICE)
    head_products(x, weight, wide[..., :num_outputs])
    expected = torch.einsum("thk,hkn->thn", x.float(), weight.float()).to(dtype)
    torch.testing.assert_close(wide[..., :num_outputs], expected, atol=2e-2, rtol=2e-2)
    assert (wide[..., num_outputs:] == 7.0).all()
