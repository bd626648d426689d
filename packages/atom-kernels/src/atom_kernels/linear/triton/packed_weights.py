"""Quantized weights as our Triton kernels read them.

Shapes: N rows and K inputs of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from atom_kernels.formats import Codes, WeightFormat, unpack_nibbles
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.operator import WeightLayout

# Inputs of one tile of words of 16 bits, and of each of its four planes.
TILE = 128
PLANE = 32
# Sums of weights in e2m1 are multiplied by that power of two, so that scales fit into a bfloat16: see `packed.py`.
E2M1_SUM_EXPONENT = 32
# The largest scale that does.
_LARGEST_POWER = 254 - (126 - E2M1_SUM_EXPONENT)


@dataclass(frozen=True)
class Packing:
    """How a format's codes and scales lie.

    Attributes:
        kind: the value of `Codes`. "plain" numbers and the bytes of "fp8" and "int8" lie as [N, K]; "int4" and "e2m1"
            are words of four codes (`planes`).
        group: inputs that share a scale.
        group_rows: rows that share a scale.
    """

    kind: str
    group: int
    group_rows: int

    @property
    def is_planar(self) -> bool:
        return Codes(self.kind).is_packed

    def constants(self) -> dict[str, Any]:
        """The constants with which the kernels are compiled."""
        return {"KIND": self.kind, "GROUP": self.group, "GROUP_ROWS": self.group_rows}

    def is_one_scale_a_row(self, num_columns: int) -> bool:
        """Whether sums of whole rows are scaled, so that codes are multiplied like plain numbers."""
        return not self.is_planar and self.group >= num_columns and self.group_rows == 1


PLAIN = Packing("plain", 0, 1)


def packing_of(weight_format: WeightFormat, num_columns: int) -> Packing:
    """For a weight of `num_columns` inputs."""
    if weight_format.codes is Codes.PLAIN:
        return PLAIN
    scale = weight_format.parts["scale"]
    return Packing(weight_format.codes.value, scale.columns or _up_to_tiles(num_columns), scale.rows)


def _up_to_tiles(num_columns: int) -> int:
    return -(-num_columns // TILE) * TILE


def why_not_packed(problem: LinearProblem) -> str | None:
    """Why Triton's kernels cannot read the problem's weights."""
    weight_format = problem.weight_format
    if weight_format.codes is Codes.PLAIN:
        return "for packed weights"
    packing = packing_of(weight_format, problem.in_features)
    group = packing.group
    if packing.is_planar and group not in (PLANE // 2, PLANE, 2 * PLANE) and group % TILE:
        return f"reads groups of {PLANE // 2}, {PLANE}, {2 * PLANE} or multiples of {TILE} inputs, not {group}"
    if _scales_are_powers(weight_format) and (weight_format.codes is not Codes.E2M1 or group != PLANE):
        return f"reads exponents of two as scales of {PLANE} codes of e2m1 alone"
    if packing.kind == "int8" and "minimum" in weight_format.parts:
        return "reads codes of eight bits without a minimum"
    if not packing.is_planar and group % PLANE:
        return f"reads tiles of multiples of {PLANE} inputs, not {group}"
    return None


def pack(problem: LinearProblem, weights: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    weight_format = problem.weight_format
    parts = {name: tensor for name in weight_format.parts if (tensor := weights[name]) is not None}
    packing, codes = packing_of(weight_format, problem.in_features), parts["weight"]
    zero_point, minimum = parts.get("zero_point"), parts.get("minimum")
    scale = words_of_powers(parts["scale"]) if _scales_are_powers(weight_format) else weight_format.scales(parts)
    if zero_point is not None:
        minimum = -zero_point.float() * scale.float()
    if _are_paired(weight_format):
        scale, minimum = _paired(scale, zero_point, minimum), None
    return {
        "codes": planes(codes, packing.kind) if packing.is_planar else codes.contiguous(),
        "scale": scale.contiguous(),
        "minimum": None if minimum is None else minimum.contiguous(),
        "bias": weights["bias"],
    }


def planes(packed: torch.Tensor, kind: str) -> torch.Tensor:
    """``uint8 [N, K / 2]`` of two codes -> ``int16 [N, K / 4]`` of four, a tile of inputs in 32 words.

    The codes of a word lie `PLANE` inputs apart, so that the same bits of neighboring words are a plane of 32
    neighboring inputs: those of "int4" four bits each, the first lowest, those of "e2m1" as `e2m1_in_word` has them.
    Inputs past the last are zeros.
    """
    codes = unpack_nibbles(packed)
    codes = pad(codes, (0, -codes.shape[1] % TILE)).unflatten(1, (-1, TILE // PLANE, PLANE)).to(torch.int32)
    words = torch.zeros_like(codes[:, :, 0])
    for plane in range(TILE // PLANE):
        if kind == Codes.E2M1.value:
            table = torch.tensor([e2m1_in_word(plane, code) for code in range(16)], device=codes.device)
            words |= table.to(torch.int32)[codes[:, :, plane]]
        else:
            words |= codes[:, :, plane] << 4 * plane
    return words.to(torch.int16).flatten(1)


def e2m1_in_word(place: int, e2m1: int) -> int:
    """The bits of a word of 16 that hold an e2m1 as its first to fourth code.

    A code's sign and its other bits lie as far from each other as in a bfloat16, so that one shift takes both to their
    places: sign and rest of the first are bits 15 and 8 to 6, of the next two those three and six lower. The last takes
    the bits that are left: 14, 13, and 11 to 10.
    """
    sign, rest = e2m1 >> 3, e2m1 & 7
    if place < 3:
        return sign << 15 - 3 * place | rest << 6 - 3 * place
    return sign << 14 | (rest >> 2) << 13 | (rest & 3) << 10


def _are_paired(weight_format: WeightFormat) -> bool:
    """Whether the two numbers of a group share a word, since float16 holds both."""
    parts = weight_format.parts
    has_two = "zero_point" in parts or "minimum" in parts
    return has_two and weight_format.codes is Codes.INT4 and parts["scale"].dtype is torch.float16


def _paired(scale: torch.Tensor, zero_point: torch.Tensor | None, minimum: torch.Tensor | None) -> torch.Tensor:
    """A word of each group, the scale in its low half: ``int32`` with a zero point, ``uint32`` with a minimum."""
    second = minimum if zero_point is None else zero_point
    if second is None:
        raise ValueError("a group has a scale alone")
    words = torch.stack((scale, second.to(torch.float16)), dim=-1).view(torch.int32).squeeze(-1)
    return words.view(torch.uint32) if zero_point is None else words


def words_of_powers(scale: torch.Tensor) -> torch.Tensor:
    """e8m0 bytes ``uint8 [N, K / 32] -> int32 [N, tiles]``: those of a tile's four planes, the first lowest.

    Raises:
        ValueError: one is beyond what the kernels can scale with.
    """
    if scale.numel() and int(scale.max()) > _LARGEST_POWER:
        raise ValueError(f"a block of weights has the scale 2 ** {int(scale.max()) - 127}: kernels take up to 2 ** 33")
    return pad(scale, (0, -scale.shape[1] % (TILE // PLANE))).contiguous().view(torch.int32)


def _scales_are_powers(weight_format: WeightFormat) -> bool:
    """Whether scales are stored as exponents of two: e8m0."""
    return weight_format.parts["scale"].dtype is torch.uint8


def _num_bytes(problem: LinearProblem, source_bytes: int) -> int:
    weight_format = problem.weight_format
    if weight_format.codes is Codes.PLAIN:
        return source_bytes
    rows, columns = problem.weight_rows, problem.in_features
    packing = packing_of(weight_format, columns)
    codes = rows * (_up_to_tiles(columns) // 2 if packing.is_planar else columns)
    parts = weight_format.parts
    height, width = parts["scale"].shape(rows, _up_to_tiles(columns) if _scales_are_powers(weight_format) else columns)
    # Scales of scales are multiplied out, and zero points become minima, both in float32 unless they are paired.
    a_group = 4 if "tensor_scale" in parts else parts["scale"].dtype.itemsize
    if {"zero_point", "minimum"} & set(parts):
        a_group += 2 if _are_paired(weight_format) else 4 if "zero_point" in parts else parts["minimum"].dtype.itemsize
    return codes + height * width * a_group + rows * problem.dtype.itemsize * problem.bias


PACKED_LAYOUT = WeightLayout("codes as Triton reads them", pack, _num_bytes)
