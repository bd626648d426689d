"""Tile sizes of the experts' products by number of tokens: tuned ones as data, and a rule for everywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom_kernels.formats import Codes, Float8, WeightFormat
from atom_kernels.linear.triton.packed_weights import packing_of
from atom_kernels.linear.triton.rounded_rows import multiplies_fp8
from atom_kernels.linear.triton.skinny_configs import block_of_inputs
from atom_kernels.moe.contract import ExpertsProblem
from atom_kernels.platform import detect_platform
from atom_kernels.triton.limits import fitting
from atom_kernels.tuned import tuned_rows

# With so many registers a thread, three programs of four warps have a place on a processor.
_REGISTERS_FOR_THREE = 168
# Up to this many pairs of a token and an expert, programs find their pairs themselves.
FEW_PAIRS = 256


@dataclass(frozen=True)
class TileConfig:
    """One product: tiles of block_m pairs x block_n outputs, block_k inputs at a time.

    Attributes:
        group_m: blocks of pairs that go through all outputs together, so that weights and rows stay in the L2 cache.
        swap: outputs are the long side of the tensor core's tile, which suits few pairs.
        num_warps, num_stages: warps of a program, and how many of its loads are in flight.
        rounds: rows are rounded to the problem's `input_format` first.
        max_registers: the limit of a thread on NVIDIA, so that more programs fit on a processor; None sets none.
    """

    block_m: int = 16
    block_n: int = 64
    block_k: int = 64
    group_m: int = 1
    swap: bool = False
    num_warps: int = 4
    num_stages: int = 4
    rounds: bool = False
    max_registers: int | None = None

    def launch(self) -> dict[str, Any]:
        """The kernel's constants."""
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        return {
            **limit,
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "GROUP_M": self.group_m,
            "SWAP": self.swap,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


@dataclass(frozen=True)
class ExpertsConfig:
    """The tiles of both products."""

    gate_up: TileConfig
    down: TileConfig

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> ExpertsConfig:
        """From the form in which a file of tuned configurations holds it."""
        return cls(TileConfig(**config["gate_up"]), TileConfig(**config["down"]))


def tuning_key(problem: ExpertsProblem) -> str:
    """The key of a problem's tuned configurations."""
    among = f" of {problem.num_routed}" if problem.num_absent else ""
    sizes = f"{problem.num_experts}x{problem.top_k} experts{among} {problem.hidden_size}x{problem.intermediate_size}"
    held = [matrix.held for matrix in problem.matrices.values()]
    names = dict.fromkeys(one.name for one in held if one.codes is not Codes.PLAIN)
    return " ".join((sizes, str(problem.dtype).removeprefix("torch."), *names))


# One kind of tile adds up a row in one order, however many rows there are.
_INVARIANT_TILE = TileConfig(block_m=32, block_n=64, block_k=64, swap=True)
_INVARIANT_PACKED_TILE = TileConfig(block_m=32, block_n=64, block_k=128, swap=True)


class ExpertsConfigs:
    """The configuration for a call's number of tokens, on one device."""

    def __init__(self, problem: ExpertsProblem, device_name: str) -> None:
        self._problem = problem
        if problem.batch_invariant and problem.dtype.itemsize < 4:
            tile = _INVARIANT_TILE if problem.is_plain else _INVARIANT_PACKED_TILE
            self._rows: tuple[tuple[int | None, ExpertsConfig], ...] = ((None, _of_formats(problem, tile)),)
        else:
            tuned = tuned_rows("moe_experts", tuning_key(problem), device_name) or ()
            self._rows = tuple((row.max_rows, ExpertsConfig.parse(row.config)) for row in tuned)

    def for_tokens(self, num_tokens: int) -> ExpertsConfig:
        for max_rows, config in self._rows:
            if max_rows is None or num_tokens <= max_rows:
                return config
        return default_config(self._problem, num_tokens)


def default_config(problem: ExpertsProblem, num_tokens: int) -> ExpertsConfig:
    """Blocks as high as an expert has pairs on average, within what a program can hold."""
    if not problem.is_plain:
        return _default_of_packed(problem, num_tokens)
    if problem.dtype.itemsize == 4:
        # Float32 products do not use tensor cores.
        tile = TileConfig(block_m=16, block_n=32, block_k=32, num_stages=2)
        return ExpertsConfig(tile, tile)
    pairs_of_expert = num_tokens * problem.top_k / problem.num_routed
    if num_tokens == 1:
        # Few programs: each has more loads on the way.
        tile = TileConfig(16, 128, 64, swap=True, num_warps=8, num_stages=5)
    elif pairs_of_expert <= 12:
        tile = TileConfig(16, 128, 128, swap=True, num_stages=3)
    elif pairs_of_expert <= 24:
        tile = TileConfig(32, 128, 128, num_stages=3)
    elif pairs_of_expert <= 96:
        tile = TileConfig(64, 128, 64, group_m=8)
    else:
        tile = TileConfig(128, 128, 64, group_m=8, num_warps=8, num_stages=3)
    itemsize = problem.dtype.itemsize
    tile = fitting(tile, "block_k", lambda tile: (tile.block_m + tile.block_n) * tile.block_k * itemsize)
    return ExpertsConfig(tile, tile)


def may_round(problem: ExpertsProblem) -> bool:
    """Whether rows may be rounded to fp8 for weights in fp8, and this GPU multiplies it."""
    if problem.batch_invariant or problem.dtype is not torch.bfloat16 or not multiplies_fp8(detect_platform()):
        return False
    held = [(matrix.held, matrix.columns) for matrix in problem.matrices.values()]
    return all(one.codes is Codes.E4M3 and _rounds_alike(problem, one, columns) for one, columns in held)


def _rounds_alike(problem: ExpertsProblem, held: WeightFormat, num_columns: int) -> bool:
    """Whether rows of x may have their scales where those of weights have theirs."""
    group = held.parts["scale"].columns
    return problem.input_format == Float8(1, group) and num_columns % (group or 1) == 0


def _default_of_packed(problem: ExpertsProblem, num_tokens: int) -> ExpertsConfig:
    """Outputs are the long side of the tensor core's tile, and each weight is decoded once for as many pairs as fit.

    Rows are rounded where that was measured to pay, which tuned configurations say.
    """
    pairs_of_expert = num_tokens * problem.top_k / problem.num_routed
    if problem.dtype.itemsize == 4:
        tile = TileConfig(block_m=16, block_n=64, block_k=128, swap=True, num_stages=2)
    elif pairs_of_expert <= 24:
        tile = _of_few_pairs(problem, num_tokens, 16 if pairs_of_expert <= 8 else 32)
    elif pairs_of_expert <= 96:
        tile = TileConfig(64, 128, 128, swap=True, num_stages=3)
    else:
        tile = TileConfig(128, 128, 128, swap=True, num_warps=8, num_stages=3)
    itemsize = problem.dtype.itemsize
    tile = fitting(tile, "block_m", lambda tile: (tile.block_m * itemsize + tile.block_n) * tile.block_k)
    return _of_formats(problem, tile)


def _of_few_pairs(problem: ExpertsProblem, num_tokens: int, height: int) -> TileConfig:
    """Fragments are read with fewer instructions a weight by higher tiles, of which three fit on an NVIDIA processor.

    One token has too few programs for that.
    """
    are_fragments = all(matrix.held.codes is Codes.E2M1 for matrix in problem.matrices.values())
    if num_tokens == 1 or not are_fragments or detect_platform().vendor != "nvidia":
        return TileConfig(height, 64, 128, swap=True)
    return TileConfig(height, 128, 128, swap=True, max_registers=_REGISTERS_FOR_THREE)


def _of_formats(problem: ExpertsProblem, tile: TileConfig) -> ExpertsConfig:
    """The tile for both products, with as many inputs at a time as the codes of each allow."""
    packings = {name: packing_of(matrix.held, matrix.columns) for name, matrix in problem.matrices.items()}
    blocks = {name: block_of_inputs(packing, tile.block_k) for name, packing in packings.items()}
    return ExpertsConfig(**{name: replace(tile, block_k=block_k) for name, block_k in blocks.items()})
