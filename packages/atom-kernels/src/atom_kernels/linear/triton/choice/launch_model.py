"""A model of a GPU: how long it multiplies a few rows by a packed weight, by which untuned shapes get their splits.

A processor runs as many programs at a time as its registers and its memory hold. Those that are left over by the last
whole round of all processors leave some idle: the split of the inputs matters most, since it decides how many there
are. The constants were fitted to 709 launches of seven shapes on an H100, of which the model tells the time within 11%
on average; what is not a rate of one processor follows from the platform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atom_kernels.formats import num_bytes
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_weights import TILE, packing_of
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig
from atom_kernels.platform import Platform


@dataclass(frozen=True)
class Rates:
    """Constants of the model, in seconds, bytes and operations of 16 bits a second.

    Attributes:
        memory: the part of the memory's rate that programs reach.
        processor: bytes of weights that one processor reads in a second, where others leave it the memory.
        operations: what one processor multiplies and adds.
        inputs: bytes of rows that a processor reads from the L2 cache.
        step, serial: what a step takes whatever it does, and what one program waits in it for itself.
        load: what the loads of a step take, of which as many are in flight as stages.
        launch: what a kernel takes before its first program runs.
        splitting, split: what it costs to split the inputs at all, and each split.
        sums: bytes of sums that programs write and read.
        registers: what a thread needs beside its sums.
    """

    memory: float
    processor: float
    operations: float
    inputs: float
    step: float
    serial: float
    load: float
    launch: float
    splitting: float
    split: float
    sums: float
    registers: int


_PACKED = Rates(
    memory=0.70, processor=7.994e10, operations=7.5e12, inputs=1.7e11, step=34e-9, serial=0.40e-6, load=2.07e-6,
    launch=1.5e-6, splitting=0.85e-6, split=0.61e-6, sums=1.5e12, registers=75,
)  # fmt: skip
# Words in groups of whole tiles; fitted to 450 launches of seven shapes with int4 at 16 rows on an H200, within 13%.
_LONG_GROUPS = replace(_PACKED, split=0.2e-6)
# Codes that a processor decodes in a second: of eight bits, and of four with one number for a tile, or more.
_BYTES_DECODED, _WORDS_DECODED, _GROUPS_DECODED = 2.7e10, 4.3e10, 1.7e10
# Registers and warps of a processor, and bytes that a program needs beside its tiles.
_REGISTERS, _WARPS, _OTHER_BYTES = 65536, 64, 1024
_WARP = 32
# Splits cost others too, which want the memory: fewer are taken where the model sees no more difference than this.
_NEARLY_BEST = 1.05
_MOST_SPLITS = 8


def best_split(
    problem: LinearProblem, tiles: Sequence[SkinnyConfig], num_rows: int, platform: Platform
) -> SkinnyConfig:
    """The tile that the model finds quickest, or nearly, with the inputs in as few parts as do."""
    if not platform.num_processors:  # Triton's interpreter
        return tiles[0]
    configs = [
        replace(tile, split_k=split)
        for tile in tiles
        for split in range(1, _MOST_SPLITS + 1)
        if split == 1 or split * tile.block_k <= problem.in_features
    ]
    times = {config: seconds(problem, config, num_rows, platform) for config in configs}
    enough = _NEARLY_BEST * min(times.values())
    return min((config for config in configs if times[config] <= enough), key=lambda config: config.split_k)


def num_programs(problem: LinearProblem, config: SkinnyConfig, num_rows: int) -> int:
    """How many programs a launch has."""
    return -(-num_rows // config.block_m) * -(-problem.out_features // config.block_n) * config.split_k


def seconds(problem: LinearProblem, config: SkinnyConfig, num_rows: int, platform: Platform) -> float:
    """The estimated time of the kernel with tensor cores (`block_m` above 1)."""
    rates = _rates(problem)
    programs = num_programs(problem, config, num_rows)
    steps = -(-problem.in_features // (config.block_k * config.split_k))
    weight_bytes, input_bytes = _tile_bytes(problem, config)
    step = rates.step + max(
        _computing(problem, config, rates), weight_bytes / rates.processor, input_bytes / rates.inputs
    )
    slots = platform.num_processors * _resident(problem, config, rates, platform)

    def round_of(programs_of_processor: int) -> float:
        latency = max(rates.load / max(config.num_stages - 1, 1), step + rates.serial)
        return steps * max(programs_of_processor * step, latency) if programs_of_processor else 0.0

    rounds, rest = divmod(programs, slots)
    busiest = rounds * round_of(slots // platform.num_processors) + round_of(-(-rest // platform.num_processors))
    # Blocks of rows that read the same weights find them in the L2 cache.
    moving = num_bytes(problem.weight_format, problem.weight_rows, problem.in_features) / (
        rates.memory * platform.bytes_per_second
    )
    return rates.launch + max(busiest, moving) + _splitting(problem, config, programs, rates)


def _rates(problem: LinearProblem) -> Rates:
    packing = packing_of(problem.weight_format, problem.in_features)
    return _LONG_GROUPS if packing.is_planar and packing.group % TILE == 0 else _PACKED


def _splitting(problem: LinearProblem, config: SkinnyConfig, programs: int, rates: Rates) -> float:
    if config.split_k == 1:
        return 0.0
    sum_bytes = 4 * config.block_m * config.block_n * (2 if problem.gated else 1)
    return rates.splitting + config.split_k * rates.split + programs * sum_bytes / rates.sums


def _tile_bytes(problem: LinearProblem, config: SkinnyConfig) -> tuple[int, int]:
    """Bytes of weights and of rows that a step reads."""
    weights = num_bytes(problem.weight_format, config.block_n, config.block_k) * (2 if problem.gated else 1)
    return weights, config.block_m * config.block_k * (1 if config.rounds else problem.dtype.itemsize)


def _computing(problem: LinearProblem, config: SkinnyConfig, rates: Rates) -> float:
    """Seconds in which a processor decodes the weights of a step and multiplies them."""
    weights = config.block_n * config.block_k * (2 if problem.gated else 1)
    rate = rates.operations * (2 if config.rounds else 1)
    decoding = 0.0 if config.rounds else weights / _codes_decoded(problem)
    return 2 * weights * config.block_m / rate + decoding


def _codes_decoded(problem: LinearProblem) -> float:
    packing = packing_of(problem.weight_format, problem.in_features)
    if not packing.is_planar:
        return _BYTES_DECODED
    # The scales of mxfp4 lie four in a word.
    one_number = packing.group >= TILE or problem.weight_format.parts["scale"].dtype.itemsize == 1
    return _WORDS_DECODED if one_number else _GROUPS_DECODED


def _resident(problem: LinearProblem, config: SkinnyConfig, rates: Rates, platform: Platform) -> int:
    """Programs that a processor runs at a time."""
    weight_bytes, input_bytes = _tile_bytes(problem, config)
    # Codes that are decoded leave the processor's memory before they are multiplied.
    staged = config.num_stages if config.rounds else config.num_stages - 1
    held = staged * weight_bytes + config.num_stages * input_bytes + _OTHER_BYTES
    threads = _WARP * config.num_warps
    copies = 1 if config.makes_weights or _has_one_scale(problem) else 2
    sums = copies * config.block_n * config.block_m * (2 if problem.gated else 1) // threads
    registers = threads * min(sums + rates.registers, 255)
    return max(1, min(platform.local_memory // held, _REGISTERS // registers, _WARPS // config.num_warps))


def _has_one_scale(problem: LinearProblem) -> bool:
    return packing_of(problem.weight_format, problem.in_features).is_one_scale_a_row(problem.in_features)
