"""Weights of four bits in floating point: mxfp4 and nvfp4 as compressed-tensors, Quark and modelopt hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Mxfp4, Nvfp4, WeightFormat
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales, rows_of_scale

_NAN_EXPONENT = 255


@dataclass(frozen=True)
class Mxfp4Layout:
    """Two e2m1 codes a byte and the exponent of a scale for 32 inputs.

    Attributes:
        weight: name of the codes' tensor: "weight_packed" of compressed-tensors, "weight" of Quark.
        rounds_inputs: activations may be rounded to mxfp4 too, each block of a row by itself.
    """

    weight: str = "weight_packed"
    scale: str = "weight_scale"
    ignored: tuple[str, ...] = ()
    rounds_inputs: bool = False

    @property
    def name(self) -> str:
        return "mxfp4"

    @property
    def weight_format(self) -> WeightFormat:
        return Mxfp4()

    @property
    def input_format(self) -> WeightFormat | None:
        return Mxfp4() if self.rounds_inputs else None

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        parts = self.weight_format.parts
        return {
            self.weight: ExpectedWeight(parts["weight"].shape(num_rows, num_columns), torch.uint8),
            self.scale: ExpectedWeight(
                parts["scale"].shape(num_rows, num_columns), torch.uint8, dtypes=(torch.float8_e8m0fnu,), dummy=120
            ),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return {"weight": tensors[self.weight], "scale": check_exponents(self.name, tensors[self.scale])}


@dataclass(frozen=True)
class Mxfp4BlocksLayout:
    """As GPT-OSS has it: the bytes of each block in a dimension of their own, ``blocks`` [..., K/32, 16]."""

    ignored: tuple[str, ...] = ()
    input_format = None

    @property
    def name(self) -> str:
        return "mxfp4"

    @property
    def weight_format(self) -> WeightFormat:
        return Mxfp4()

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        rows, blocks = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        return {
            "blocks": ExpectedWeight((rows, blocks, 16), torch.uint8),
            "scales": ExpectedWeight((rows, blocks), torch.uint8, dummy=120),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return {"weight": tensors["blocks"].flatten(-2), "scale": check_exponents(self.name, tensors["scales"])}


@dataclass(frozen=True)
class Nvfp4Layout:
    """Two e2m1 codes a byte, a scale in e4m3 for 16 inputs, and a scale of the whole tensor.

    Attributes:
        divides: the tensor's scale divides (compressed-tensors' ``weight_global_scale``) instead of multiplying
            (modelopt's ``weight_scale_2``).
    """

    weight: str = "weight_packed"
    tensor_scale: str = "weight_global_scale"
    divides: bool = True
    ignored: tuple[str, ...] = ("input_global_scale", "input_scale")
    input_format = None

    @property
    def name(self) -> str:
        return "nvfp4"

    @property
    def weight_format(self) -> WeightFormat:
        return Nvfp4(self.divides)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        parts = self.weight_format.parts
        return {
            self.weight: ExpectedWeight(parts["weight"].shape(num_rows, num_columns), torch.uint8),
            "weight_scale": ExpectedWeight(
                parts["scale"].shape(num_rows, num_columns), torch.float8_e4m3fn, dummy=0.01
            ),
            self.tensor_scale: ExpectedWeight((1,), torch.float32, ((),), dummy=1.0),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return {
            "weight": tensors[self.weight],
            "scale": check_scales(self.name, tensors["weight_scale"]),
            "tensor_scale": rows_of_scale(check_scales(self.name, tensors[self.tensor_scale]), num_rows),
        }


def check_exponents(layout: str, scale: torch.Tensor) -> torch.Tensor:
    """The bytes of e8m0 scales, none of which is NaN."""
    scale = scale.view(torch.uint8)
    if bool((scale == _NAN_EXPONENT).any()):
        raise CheckpointError(f"{layout}: a scale is not a number (exponent {_NAN_EXPONENT})")
    return scale
