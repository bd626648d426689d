"""Weights of four bits as AutoAWQ and GPTQ write them: transposed, with packed zero points and float16 scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Integers, Offset, WeightFormat, pack_nibbles
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.integers import unpack_words
from atom_models.quantization.layouts.stored import Expected, check_scales

# Columns of the codes of a word, the lowest bits first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PLAIN_ORDER = tuple(range(8))


@dataclass(frozen=True)
class AwqLayout:
    """AutoAWQ's "gemm": ``qweight`` int32 [K, N/8], ``qzeros`` int32 [K/g, N/8], ``scales`` float16 [K/g, N].

    Lin et al. 2023, "AWQ", https://arxiv.org/abs/2306.00978.
    """

    group: int | None = 128
    ignored: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"awq {self.weight_format.name}"

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(4, self.group, Offset.ZERO_POINT, torch.float16)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, Expected]:
        groups = self.weight_format.parts["scale"].shape(num_rows, num_columns)[1]
        return {
            "qweight": Expected(((num_columns, num_rows // 8),), (torch.int32,)),
            "qzeros": Expected(((groups, num_rows // 8),), (torch.int32,)),
            "scales": Expected(((groups, num_rows),), (torch.float16,)),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return {
            "weight": pack_nibbles(unpack_words(tensors["qweight"], _AWQ_ORDER).t()),
            "scale": check_scales(self.name, tensors["scales"]).t(),
            "zero_point": unpack_words(tensors["qzeros"], _AWQ_ORDER).t(),
        }


@dataclass(frozen=True)
class GptqLayout:
    """``qweight`` int32 [K/8, N], ``qzeros`` int32 [K/g, N/8], ``scales`` float16 [K/g, N], ``g_idx`` int32 [K].

    Frantar et al. 2022, "GPTQ", https://arxiv.org/abs/2210.17323.

    Attributes:
        zeros_less_one: zero points are stored less one, modulo 16 (``checkpoint_format`` "gptq"; "gptq_v2" does not).
        symmetric: all zero points are 8. Some writers name the one format and mean the other: then the words tell.
    """

    group: int | None = 128
    zeros_less_one: bool = True
    symmetric: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"gptq {self.weight_format.name}"

    @property
    def weight_format(self) -> WeightFormat:
        offset = Offset.NONE if self.symmetric else Offset.ZERO_POINT
        return Integers(4, self.group, offset, torch.float16)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, Expected]:
        groups = self.weight_format.parts["scale"].shape(num_rows, num_columns)[1]
        return {
            "qweight": Expected(((num_columns // 8, num_rows),), (torch.int32,)),
            "qzeros": Expected(((groups, num_rows // 8),), (torch.int32,)),
            "scales": Expected(((groups, num_rows),), (torch.float16,)),
            "g_idx": Expected(((num_columns,),), (torch.int32,), optional=True),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        self._check_order(tensors.get("g_idx"), num_columns)
        parts = {
            "weight": pack_nibbles(unpack_words(tensors["qweight"].t(), _PLAIN_ORDER)),
            "scale": check_scales(self.name, tensors["scales"]).t(),
        }
        zeros = unpack_words(tensors["qzeros"], _PLAIN_ORDER).t()
        if not self.symmetric:
            return parts | {"zero_point": (zeros + 1) % 16 if self.zeros_less_one else zeros}
        if bool((zeros != zeros[0, 0]).any()) or int(zeros[0, 0]) not in (7, 8):
            raise CheckpointError(f"{self.name}: the config says symmetric, but zero points are stored that are not 8")
        return parts

    def _check_order(self, group_of_input: torch.Tensor | None, num_columns: int) -> None:
        in_order = torch.arange(num_columns) // (self.group or num_columns)
        if group_of_input is not None and not torch.equal(group_of_input.long().cpu(), in_order):
            raise CheckpointError(
                f"{self.name}: inputs are sorted by activation (desc_act), which is not read; use a checkpoint without"
            )
