"""Weights as integers: compressed-tensors' and bitsandbytes' of eight bits, compressed-tensors' packed ones of four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from atom_kernels.formats import Float8, Integers, Offset, WeightFormat
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales, expected_scale, rows_of_scale

# Codes of four bits, and of eight, in an int32.
_CODES = 8
_BYTES = 4


@dataclass(frozen=True)
class Int8Layout:
    """``weight`` in int8 and a scale for each row, or for all.

    Attributes:
        scale: name of the scale's tensor.
        divisor: what the scale is divided by. bitsandbytes stores a row's largest magnitude (``SCB``), coded as 127.
        rounds_inputs: activations may be rounded to int8 too, each row by itself.
    """

    scale: str = "weight_scale"
    divisor: float = 1.0
    ignored: tuple[str, ...] = ("input_scale", "input_zero_point", "weight_zero_point")
    rounds_inputs: bool = False

    @property
    def name(self) -> str:
        return self.weight_format.name

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(8)

    @property
    def input_format(self) -> WeightFormat | None:
        return Integers(8) if self.rounds_inputs else None

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        weight = ExpectedWeight((num_rows, num_columns), torch.int8)
        return {"weight": weight, self.scale: expected_scale(num_rows)}

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        scale = check_scales(self.name, tensors[self.scale])
        return {"weight": tensors["weight"], "scale": rows_of_scale(scale, num_rows) / self.divisor}


@dataclass(frozen=True)
class PackedInt8Layout:
    """compressed-tensors' "pack-quantized" of eight bits: four codes in an int32, the lowest column lowest, plus 128.

    Attributes:
        group: inputs that share a scale; None is a whole row.
    """

    group: int | None = None
    ignored: tuple[str, ...] = ("weight_shape",)
    input_format = None

    @property
    def name(self) -> str:
        return f"packed {self.weight_format.name}"

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(8, self.group)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        words = ExpectedWeight((num_rows, -(-num_columns // _BYTES)), torch.int32)
        scale = expected_scale(num_rows) if self.group is None else ExpectedWeight(grid, torch.bfloat16, dummy=0.01)
        return {"weight_packed": words, "weight_scale": scale}

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        scale = check_scales(self.name, tensors["weight_scale"])
        codes = tensors["weight_packed"].contiguous().view(torch.uint8)[:, :num_columns]
        return {
            # The highest bit turned over takes off 128.
            "weight": (codes ^ 0x80).view(torch.int8),
            "scale": rows_of_scale(scale, num_rows) if self.group is None else scale.float(),
        }


@dataclass(frozen=True)
class PackedInt4Layout:
    """compressed-tensors' "pack-quantized" of four bits: eight codes in an int32, the lowest column lowest.

    Attributes:
        group: inputs that share a scale; None is a whole row.
        zero_points: there are some, packed along the outputs.
        scale_dtype: in which scales are held, whatever the checkpoint has.
        checks_shape: ``weight_shape`` is there: it is read, and has to be that of the layer.
        rounds_inputs: activations may be rounded to fp8, each row by itself.
    """

    group: int | None = 128
    zero_points: bool = False
    scale_dtype: torch.dtype = torch.float32
    checks_shape: bool = False
    rounds_inputs: bool = False

    @property
    def name(self) -> str:
        return f"packed {self.weight_format.name}"

    @property
    def input_format(self) -> WeightFormat | None:
        return Float8() if self.rounds_inputs else None

    @property
    def ignored(self) -> tuple[str, ...]:
        return () if self.checks_shape else ("weight_shape",)

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(4, self.group, Offset.ZERO_POINT if self.zero_points else Offset.NONE, self.scale_dtype)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        by_row = ((num_rows,),) if grid[1] == 1 else ()
        expected = {
            "weight_packed": ExpectedWeight((num_rows, -(-num_columns // _CODES)), torch.int32),
            "weight_scale": ExpectedWeight(grid, torch.bfloat16, by_row, dummy=0.01),
        }
        if self.zero_points:
            expected["weight_zero_point"] = ExpectedWeight((-(-num_rows // _CODES), grid[1]), torch.int32)
        if self.checks_shape:
            expected["weight_shape"] = ExpectedWeight((2,), torch.int64, dtypes=(torch.int32,), dummy=0)
        return expected

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        told = tensors["weight_shape"].tolist() if self.checks_shape else [0, 0]
        if told not in ([num_rows, num_columns], [0, 0]):  # zeros are in dummy weights
            raise CheckpointError(f"{self.name}: weight_shape says {told}, and the layer is {[num_rows, num_columns]}")
        parts = {
            # Little-endian words: their bytes are two codes each, and the even column is low already.
            "weight": tensors["weight_packed"].contiguous().view(torch.uint8)[:, : -(-num_columns // 2)],
            "scale": check_scales(self.name, tensors["weight_scale"]).reshape(grid).to(self.scale_dtype),
        }
        if self.zero_points:
            parts["zero_point"] = unpack_words(tensors["weight_zero_point"].t()).t()[:num_rows]
        return parts


def unpack_words(words: torch.Tensor, order: Sequence[int] = range(_CODES)) -> torch.Tensor:
    """``int32 [..., n]`` of eight codes -> ``uint8 [..., 8 n]``; code i of a word belongs to column ``order[i]``."""
    shifts = torch.tensor([4 * order.index(column) for column in range(_CODES)], dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8).flatten(-2)
