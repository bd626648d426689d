"""fused_moe of quantized experts: fp8 by rows and by tiles, and MXFP4. Rows are rounded before both products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import dynamic_quant, int4_experts, machine, mx
from .checks import check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .experts import local_experts
from .shuffle import require_shuffled, unshuffled

PER_TOKEN, PER_1X32, PER_1X128, PER_128X128 = 2, 3, 4, 5
SILU = 0
TILE = 128


def fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    routed: tuple[Tensor, Tensor, Tensor | None],
    activation: int,
    quant_type: int,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    ignored: dict[str, object],
    *,
    reads_attribute: bool,
) -> Tensor:
    """A new ``[tokens, hidden]``.

    Args:
        w1: ``[experts, 2 * inter, hidden]`` (MXFP4: half the bytes), gates first; w2: ``[experts, hidden, inter]``.
        routed: weights and ids ``[tokens, k]``, and the mask of experts that are here.
        ignored: arguments that the emulator does not have, by name.
    """
    if activation != SILU or quant_type not in (PER_TOKEN, PER_1X32, PER_1X128, PER_128X128):
        raise NotImplementedError("the emulator has quantized experts with silu, by rows, tiles and blocks of MXFP4")
    given = [name for name, value in ignored.items() if isinstance(value, Tensor) or value not in (None, 0, False)]
    if given:
        raise NotImplementedError(f"the emulator has quantized experts without {', '.join(given)}")
    if quant_type == PER_1X32 and w1.dtype == getattr(torch, "int4", None):
        return int4_experts.fused_moe(hidden_states, w1, w2, routed, w1_scale, w2_scale)
    weights, ids, mask = routed
    is_int4 = w1.dtype == torch.uint32
    packed = 8 if is_int4 else 2 if quant_type == PER_1X32 else 1
    if is_int4 and quant_type != PER_TOKEN:
        raise NotImplementedError("the emulator has int4 experts with a scale for each row")
    (num_tokens, hidden), num_experts, inter = hidden_states.shape, w2.shape[0], w2.shape[2] * packed
    assert w1.shape[1] == inter * 2, f"Invalid MoE weight: {w1.shape=} {w2.shape=}"
    detect_unless(hidden_states.dtype == torch.bfloat16, "the assembly stores bf16, whatever the tokens are")
    check_shape("w1", w1, num_experts, None, hidden // packed)
    check_shape("w2", w2, None, hidden, None)
    check_contiguous("hidden_states", hidden_states)
    wanted = mx.fp4x2() if quant_type == PER_1X32 else torch.uint32 if is_int4 else machine.fp8()
    if quant_type == PER_1X32:
        refuse_unless(machine.arch() == "gfx950", "no kernel of fp4 experts on gfx942")
    step = 2 * TILE if quant_type == PER_1X32 else TILE
    refuse_unless(hidden % step == 0 and inter % step == 0, f"no kernel for hidden {hidden}, inter {inter}")
    assert w1_scale is not None, "w1_scale is missing"
    assert w2_scale is not None, "w2_scale is missing"
    for name, tensor in {"w1": w1, "w2": w2}.items():
        check_dtype(name, tensor, wanted)
        if is_int4:
            # Kernels of int4 know but one order, and nobody asks for the attribute.
            require_shuffled(name, int4_numbers(tensor), use_int4=True)
            continue
        require_shuffled(name, tensor.view(torch.uint8))
        marked = getattr(tensor, "is_shuffled", False)
        detect_unless(marked or not reads_attribute, f"{name} lost is_shuffled: it is read in the plain order")
    first, second = _numbers("w1", w1, w1_scale, quant_type), _numbers("w2", w2, w2_scale, quant_type)
    local = local_experts(ids, weights, num_experts, mask, num_tokens)
    rows = _rounded(hidden_states, quant_type)
    result = torch.zeros(num_tokens, hidden)
    for expert in range(num_experts):
        tokens, slots = torch.nonzero(local == expert, as_tuple=True)
        if tokens.numel():
            gate, up = (rows[tokens] @ first[expert].t()).split(inter, dim=1)
            between = _rounded((F.silu(gate) * up).to(torch.bfloat16), quant_type)
            result.index_add_(0, tokens, between @ second[expert].t() * weights[tokens, slots][:, None])
    return result.to(torch.bfloat16)


def int4_numbers(words: Tensor) -> Tensor:
    """Words of eight numbers, columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on -> int8, column by column."""
    detect_unless(words.is_contiguous(), "words of int4 are read as contiguous")
    nibbles = words.view(torch.int32).unsqueeze(-1) >> torch.arange(0, 32, 4) & 15
    evens_and_odds = nibbles.unflatten(-1, (2, 4)).transpose(-1, -2)
    return ((evens_and_odds.flatten(-3) ^ 8) - 8).to(torch.int8)


def _rounded(rows: Tensor, quant_type: int) -> Tensor:
    """What is left of rows: their numbers in float32."""
    if quant_type == PER_1X32:
        codes, scale = dynamic_quant.per_1x32_fp4(rows, None, mx.fp4x2(), False, None)
        return mx.decode(codes) * mx.spread(mx.exponents_as_numbers(scale))
    if quant_type == PER_TOKEN:
        codes, scale = dynamic_quant.per_token(rows, None, machine.fp8(), None)
        return codes.float() * scale
    codes, scale = dynamic_quant.per_group(rows, None, machine.fp8(), TILE, False, None)
    return codes.float() * scale.repeat_interleave(TILE, 1)


def _numbers(name: str, weight: Tensor, scale: Tensor, quant_type: int) -> Tensor:
    """The weights of all experts in float32, in the plain order."""
    num_experts, rows, columns = weight.shape
    if weight.dtype == torch.uint32:
        plain = unshuffled(int4_numbers(weight), use_int4=True)
    else:
        plain = unshuffled(weight.view(torch.uint8)).view(weight.dtype)
    if quant_type == PER_1X32:
        blocks = 2 * columns // mx.BLOCK
        scales = mx.read_scales(f"{name}_scale", scale.view(-1, scale.shape[-1]), num_experts * rows, blocks)
        return mx.decode(plain) * mx.spread(scales).view(num_experts, rows, 2 * columns)
    check_dtype(f"{name}_scale", scale, torch.float32)
    check_contiguous(f"{name}_scale", scale)
    if quant_type == PER_TOKEN:
        check_shape(f"{name}_scale", scale, num_experts, rows, 1)
        return plain.float() * scale
    check_shape(f"{name}_scale", scale, num_experts, rows // TILE, columns // TILE)
    return plain.float() * scale.repeat_interleave(TILE, 1).repeat_interleave(TILE, 2)
