"""Weights of four bits as AutoAWQ and GPTQ write them: transposed, with packed zero points and float16 scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Integers, Offset, WeightFormat, pack_nibbles
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.integers import unpack_words
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales

# Columns of the codes of a word, the lowest bits first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_ALL_8_LESS_ONE = 0x77777777


@dataclass(frozen=True)
class AwqLayout:
    """AutoAWQ's "gemm": ``qweight`` int32 [K, N/8], ``qzeros`` int32 [K/g, N/8], ``scales`` float16 [K/g, N].

    Lin et al. 2023, "AWQ", https://arxiv.org/abs/2306.00978.
    """

    group: int | None = 128
    ignored: tuple[str, ...] = ()
    input_format = None

    @property
    def name(self) -> str:
        return f"awq {self.weight_format.name}"

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(4, self.group, Offset.ZERO_POINT, torch.float16)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        groups = self.weight_format.parts["scale"].shape(num_rows, num_columns)[1]
        return {
            "qweight": ExpectedWeight((num_columns, -(-num_rows // 8)), torch.int32),
            "qzeros": ExpectedWeight((groups, -(-num_rows // 8)), torch.int32),
            "scales": ExpectedWeight((groups, num_rows), torch.float16, dummy=0.01),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return {
            "weight": pack_nibbles(unpack_words(tensors["qweight"], _AWQ_ORDER).t()),
            "scale": check_scales(self.name, tensors["scales"]).half().t(),
            "zero_point": unpack_words(tensors["qzeros"], _AWQ_ORDER).t(),
        }


@dataclass(frozen=True)
class GptqLayout:
    """``qweight`` int32 [K/8, N], ``qzeros`` int32 [K/g, N/8], ``scales`` float16 [K/g, N], ``g_idx`` int32 [K].

    Frantar et al. 2022, "GPTQ", https://arxiv.org/abs/2210.17323.

    Attributes:
        zeros_less_one: zero points are stored less one, modulo 16 (``checkpoint_format`` "gptq"; "gptq_v2" does not).
        symmetric: all zero points are 8. Some writers name the one format and mean the other: then the words tell.
        sorted_inputs: an input's group is what ``g_idx`` says (``desc_act``), so that each input has a scale of its own
            here; else groups follow each other.
        checks_groups: ``g_idx`` is there without ``desc_act``: it is read, and has to say that groups follow in order.
    """

    group: int | None = 128
    zeros_less_one: bool = True
    symmetric: bool = False
    sorted_inputs: bool = False
    checks_groups: bool = False
    input_format = None

    @property
    def name(self) -> str:
        sorting = " with sorted inputs" if self.sorted_inputs else ""
        return f"gptq {Integers(4, self.group).name}{sorting}"

    @property
    def ignored(self) -> tuple[str, ...]:
        return () if self.sorted_inputs or self.checks_groups else ("g_idx",)

    @property
    def weight_format(self) -> WeightFormat:
        offset = Offset.NONE if self.symmetric else Offset.ZERO_POINT
        return Integers(4, 1 if self.sorted_inputs else self.group, offset, torch.float16)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        groups = -(-num_columns // (self.group or num_columns))
        expected = {
            "qweight": ExpectedWeight((-(-num_columns // 8), num_rows), torch.int32),
            "qzeros": ExpectedWeight((groups, -(-num_rows // 8)), torch.int32, dummy=_ALL_8_LESS_ONE),
            "scales": ExpectedWeight((groups, num_rows), torch.float16, dummy=0.01),
        }
        if self.sorted_inputs or self.checks_groups:
            expected["g_idx"] = ExpectedWeight((num_columns,), torch.int32, dtypes=(torch.int64,), dummy=0)
        return expected

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        scale, zeros = tensors["scales"].half().t(), unpack_words(tensors["qzeros"]).t()
        check_scales(self.name, scale)
        if self.sorted_inputs:
            group_of_input = tensors["g_idx"].long()
            if not bool(((group_of_input >= 0) & (group_of_input < scale.shape[1])).all()):
                raise CheckpointError(f"{self.name}: g_idx names groups that have no scales")
            scale, zeros = scale[:, group_of_input], zeros[:, group_of_input]
        elif self.checks_groups:
            self._check_groups(tensors["g_idx"], num_columns)
        parts = {"weight": pack_nibbles(unpack_words(tensors["qweight"].t())), "scale": scale}
        if not self.symmetric:
            return parts | {"zero_point": (zeros + 1) % 16 if self.zeros_less_one else zeros}
        if bool((zeros != zeros[0, 0]).any()) or int(zeros[0, 0]) not in (7, 8):
            raise CheckpointError(f"{self.name}: the config says symmetric, but zero points are stored that are not 8")
        return parts

    def _check_groups(self, group_of_input: torch.Tensor, num_columns: int) -> None:
        in_order = torch.arange(num_columns) // (self.group or num_columns)
        others = (group_of_input.cpu() != in_order).nonzero()
        if len(others):
            first = int(others[0, 0])
            raise CheckpointError(
                f"{self.name}: g_idx puts input {first} into group {int(group_of_input[first])}, and the config, whose "
                f"desc_act is false, into group {int(in_order[first])}; set desc_act to true if g_idx is right"
            )
