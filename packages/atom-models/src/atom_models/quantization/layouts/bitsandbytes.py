"""Weights of four bits as bitsandbytes stores them: codes of a table, and the largest magnitude of each block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.formats import Plain, WeightFormat
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales

# Weights that share a magnitude, and magnitudes that share one where these are rounded too.
_BLOCK, _NESTED_BLOCK = 64, 256
_STATE = "weight.quant_state.bitsandbytes__{}"


@dataclass(frozen=True)
class Bitsandbytes4Layout:
    """``weight`` uint8 [N K / 2, 1], of each byte the high half first, and ``weight.quant_map`` float32 [16].

    A weight is the table's number times the magnitude of its block (``weight.absmax``). Blocks follow each other over
    the matrix as it lies in memory, so that one may go on in the next row. No kernel reads that: layers hold plain
    numbers. Dettmers et al. 2023, "QLoRA", https://arxiv.org/abs/2305.14314.

    Attributes:
        kind: which table it is, "nf4" or "fp4".
        nested: magnitudes are codes of a table themselves, with magnitudes of their own and a common offset.
    """

    kind: str
    nested: bool
    ignored: tuple[str, ...] = ()
    input_format = None

    @property
    def name(self) -> str:
        return f"{self.kind} with rounded scales" if self.nested else self.kind

    @property
    def weight_format(self) -> WeightFormat:
        return Plain(torch.float32)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        blocks = -(-num_rows * num_columns // _BLOCK)
        expected = {
            "weight": ExpectedWeight((-(-num_rows * num_columns // 2), 1), torch.uint8),
            "weight.absmax": ExpectedWeight((blocks,), torch.uint8 if self.nested else torch.float32, dummy=1.0),
            "weight.quant_map": ExpectedWeight((16,), torch.float32, dummy=0.01),
            _STATE.format(self.kind): ExpectedWeight((0,), torch.uint8, any_length=True),
        }
        if self.nested:
            nested = -(-blocks // _NESTED_BLOCK)
            expected["weight.nested_absmax"] = ExpectedWeight((nested,), torch.float32, dummy=1.0)
            expected["weight.nested_quant_map"] = ExpectedWeight((256,), torch.float32, dummy=1.0)
        return expected

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        absmax = tensors["weight.absmax"]
        state = self._state(tensors[_STATE.format(self.kind)], [num_rows, num_columns])
        if self.nested:
            of_each = tensors["weight.nested_absmax"].repeat_interleave(_NESTED_BLOCK)[: len(absmax)]
            absmax = tensors["weight.nested_quant_map"][absmax.int()] * of_each + state.get("nested_offset", 0.0)
        check_scales(self.name, absmax)
        table = tensors["weight.quant_map"]
        pairs = torch.cartesian_prod(table, table)[tensors["weight"].flatten().int()]
        count = num_rows * num_columns
        values = pairs.new_zeros(len(absmax) * _BLOCK)
        values[:count] = pairs.flatten()[:count]
        values.view(-1, _BLOCK).mul_(absmax.unsqueeze(1))
        return {"weight": values[:count].view(num_rows, num_columns)}

    def _state(self, stored: torch.Tensor, shape: list[int]) -> Mapping[str, Any]:
        """What the file says of the matrix; nothing where weights are random.

        Raises:
            CheckpointError: it is no JSON, or says that blocks or the matrix are other than ours.
        """
        if not stored.numel():
            return {}
        try:
            state = json.loads(bytes(stored.tolist()))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.name}: the state of the weights is no JSON ({error})") from None
        wanted = {"quant_type": self.kind, "blocksize": _BLOCK, "shape": shape}
        if self.nested:
            wanted["nested_blocksize"] = _NESTED_BLOCK
        for key, value in wanted.items():
            if state.get(key) != value:
                raise CheckpointError(f"{self.name}: the state of the weights has {key} {state.get(key)}, not {value}")
        if self.nested and not isinstance(state.get("nested_offset"), float):
            raise CheckpointError(f"{self.name}: the state of the weights has no nested_offset")
        return state
