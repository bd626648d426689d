"""Rotary embedding at given positions, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def table(max_position: int, width: int, dtype: torch.dtype = BF16) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.randn(max_position, 1, 1, width)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def arguments(**changes) -> dict:
    cos, sin = table(11, 4)
    given = {
        "input_x": torch.randn(1, 5, 3, 8).to(BF16),
        "input_y": torch.randn(1, 5, 2, 8).to(BF16),
        "cos": cos,
        "sin": sin,
        "positions": torch.tensor([[0, 10, 4, 4, 7]]),
        "rotate_style": 0,
        "reuse_freqs_front_part": True,
        "nope_first": False,
    }
    return given | changes


def turned_by_complex_numbers(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool) -> torch.Tensor:
    pairs = torch.stack(x.float().chunk(2, -1), -1) if neox else x.float().unflatten(-1, (-1, 2))
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos.float(), sin.float()))
    return torch.cat(turned.unbind(-1), -1) if neox else turned.flatten(-2)


@pytest.mark.parametrize("style", [0, 1])
def test_both_tensors_are_turned_in_place(aiter: ModuleType, style: int):
    given = arguments(rotate_style=style)
    at = given["positions"]
    expected = [
        turned_by_complex_numbers(given[name], given["cos"][at, 0], given["sin"][at, 0], neox=style == 0).to(BF16)
        for name in ("input_x", "input_y")
    ]
    assert aiter.rope_cached_positions_2c_fwd_inplace(**given) is None
    torch.testing.assert_close([given["input_x"], given["input_y"]], expected)


@pytest.mark.parametrize("style", [0, 1])
def test_full_tables_have_an_angle_for_each_element(aiter: ModuleType, style: int):
    given = arguments(rotate_style=style)
    one = {name: value for name, value in given.items() if name not in ("input_x", "input_y")}
    x, y = given["input_x"].clone(), given["input_x"].clone()
    aiter.rope_cached_positions_fwd_inplace(x, **one)
    full = {name: torch.cat((one[name], one[name]), -1) for name in ("cos", "sin")}
    if style == 1:
        full = {name: one[name].repeat_interleave(2, -1) for name in ("cos", "sin")}
    aiter.rope_cached_positions_fwd_inplace(y, **one | full | {"reuse_freqs_front_part": False})
    assert torch.equal(x, y)


def test_the_rest_of_a_head_stays(aiter: ModuleType):
    given = arguments(input_x=torch.randn(1, 5, 3, 12).to(BF16))
    before, front = given["input_x"].clone(), given["input_x"][..., :8].clone()
    aiter.rope_cached_positions_2c_fwd_inplace(**given)
    assert torch.equal(given["input_x"][..., 8:], before[..., 8:])
    aiter.rope_cached_positions_2c_fwd_inplace(
        **given | {"input_x": front, "input_y": torch.zeros(1, 5, 2, 8, dtype=BF16)}
    )
    assert torch.equal(given["input_x"][..., :8], front)


def test_q_and_k_may_be_views_of_one_projection(aiter: ModuleType):
    given, qkv = arguments(), torch.randn(5, 7 * 8).to(BF16)
    q, k = qkv[:, :24].view(1, 5, 3, 8), qkv[:, 24:40].view(1, 5, 2, 8)
    copies = {"input_x": q.clone(), "input_y": k.clone()}
    rest = qkv[:, 40:].clone()
    aiter.rope_cached_positions_2c_fwd_inplace(**given | {"input_x": q, "input_y": k})
    aiter.rope_cached_positions_2c_fwd_inplace(**given | copies)
    assert torch.equal(q, copies["input_x"])
    assert torch.equal(k, copies["input_y"])
    assert torch.equal(qkv[:, 40:], rest)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rotate_style": 2}, Refused, "rotate style"),
        ({"positions": torch.tensor([[0, 1, 2, 3]])}, SilentlyWrong, "input_x has shape"),
        ({"positions": torch.arange(10).view(1, 10)[:, ::2]}, SilentlyWrong, "contiguous"),
        ({"positions": torch.tensor([[0, 1, 2, 3, 11]])}, SilentlyWrong, "positions leaves"),
        ({"positions": torch.tensor([[0, 1, -1, 3, 4]])}, SilentlyWrong, "positions leaves"),
        ({"cos": table(11, 4, torch.float32)[0]}, SilentlyWrong, "cos is"),
        ({"sin": table(11, 4, torch.float32)[0]}, SilentlyWrong, "sin is"),
        ({"sin": table(10, 4)[0]}, SilentlyWrong, "sin has shape"),
        ({"cos": table(11, 8)[0][..., ::2]}, SilentlyWrong, "cos has strides"),
        ({"cos": torch.zeros(11, 4, dtype=BF16)}, SilentlyWrong, "cos has shape"),
        ({"reuse_freqs_front_part": True, "cos": table(11, 8)[0], "sin": table(11, 8)[0]}, SilentlyWrong, "rotate 16"),
        ({"input_y": torch.randn(1, 5, 2, 8)}, SilentlyWrong, "dtypes"),
        ({"input_x": torch.randn(1, 5, 3, 8).double()}, Refused, "input_x"),
        ({"input_x": torch.zeros(1, 5, 3, 12, dtype=BF16), "nope_first": True}, SilentlyWrong, "rotates nothing"),
    ],
)
def test_what_the_kernels_misread(aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.rope_cached_positions_2c_fwd_inplace(**arguments(**changes))


def test_positions_of_another_width_are_found(git_aiter: ModuleType, pypi_aiter: ModuleType):
    given = arguments(positions=torch.zeros(1, 5, dtype=torch.int32))
    with pytest.raises(Refused, match="positions is torch.int32"):
        pypi_aiter.rope_cached_positions_2c_fwd_inplace(**given)
    with pytest.raises(SilentlyWrong, match="positions is torch.int32"):
        git_aiter.rope_cached_positions_2c_fwd_inplace(**given)


def test_one_tensor_is_not_turned_twice(aiter: ModuleType):
    x = torch.randn(1, 5, 3, 8).to(BF16)
    with pytest.raises(SilentlyWrong, match="share memory"):
        aiter.rope_cached_positions_2c_fwd_inplace(**arguments(input_x=x, input_y=x))
