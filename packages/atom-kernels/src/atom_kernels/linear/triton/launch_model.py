"""A model of a GPU: how long it multiplies a few rows by a packed weight, by which blocks of untuned shapes are chosen.

A processor runs as many programs at a time as its registers and its memory hold. Those that are left over by the last
whole round of all processors leave some idle: the split of the inputs matters most, since it decides how many there
are. The constants were fitted to 709 launches of seven shapes on an H100, of which the model tells the time within 11%
on average; what is not a rate of one processor follows from the platform.
"""

from __future__ import annotations

from atom_kernels.formats import num_bytes
from atom_kernels.linear.contract import FusedLinearProblem
from atom_kernels.linear.triton.packed_weights import packing_of
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig
from atom_kernels.platform import Platform

# The part of the memory's rate that programs reach, and how many times its even share of it one processor can take.
_MEMORY_RATE, _LARGEST_SHARE = 0.70, 4.5
# What a processor does in a second: operations with 16 bits, and bytes of rows that it reads from the L2 cache.
_OPERATIONS, _INPUT_BYTES = 7.5e12, 1.7e11
# Codes that a processor decodes in a second: of eight bits, and of four with one number for a step, or more.
_BYTES_DECODED, _WORDS_DECODED, _GROUPS_DECODED = 2.7e10, 4.3e10, 1.7e10
# Seconds that a step takes whatever it does, that one program waits in it for itself, and that its loads take, of which
# as many are in flight as stages.
_STEP, _SERIAL, _LOAD = 34e-9, 0.40e-6, 2.07e-6
# Seconds of a launch, of splitting the inputs, and of each split; and bytes of sums that programs write and read in a
# second.
_LAUNCH, _SPLITTING, _SPLIT, _SUM_BYTES = 1.5e-6, 0.85e-6, 0.61e-6, 1.5e12
# Registers and warps of a processor, registers that a thread needs beside its sums, and bytes that a program does.
_REGISTERS, _WARPS, _OTHER_REGISTERS, _OTHER_BYTES = 65536, 64, 75, 1024
_WARP = 32


def seconds(problem: FusedLinearProblem, config: SkinnyConfig, num_rows: int, platform: Platform) -> float:
    """The estimated time of the kernel with tensor cores (`block_m` above 1)."""
    blocks = -(-num_rows // config.block_m) * -(-problem.out_features // config.block_n)
    programs, steps = blocks * config.split_k, -(-problem.in_features // (config.block_k * config.split_k))
    weight_bytes, input_bytes = _tile_bytes(problem, config)
    even_share = _MEMORY_RATE * platform.bytes_per_second / platform.num_processors
    step = _STEP + max(
        _computing(problem, config), weight_bytes / (_LARGEST_SHARE * even_share), input_bytes / _INPUT_BYTES
    )
    slots = platform.num_processors * _resident(problem, config, platform)

    def round_of(programs_of_processor: int) -> float:
        latency = max(_LOAD / max(config.num_stages - 1, 1), step + _SERIAL)
        return steps * max(programs_of_processor * step, latency) if programs_of_processor else 0.0

    rounds, rest = divmod(programs, slots)
    busiest = rounds * round_of(slots // platform.num_processors) + round_of(-(-rest // platform.num_processors))
    # Blocks of rows that read the same weights find them in the L2 cache.
    moving = num_bytes(problem.weight_format, problem.weight_rows, problem.in_features) / (
        _MEMORY_RATE * platform.bytes_per_second
    )
    return _LAUNCH + max(busiest, moving) + _splitting(problem, config, programs)


def _splitting(problem: FusedLinearProblem, config: SkinnyConfig, programs: int) -> float:
    if config.split_k == 1:
        return 0.0
    sum_bytes = 4 * config.block_m * config.block_n * (2 if problem.gated else 1)
    return _SPLITTING + config.split_k * _SPLIT + programs * sum_bytes / _SUM_BYTES


def _tile_bytes(problem: FusedLinearProblem, config: SkinnyConfig) -> tuple[int, int]:
    """Bytes of weights and of rows that a step reads."""
    weights = num_bytes(problem.weight_format, config.block_n, config.block_k) * (2 if problem.gated else 1)
    return weights, config.block_m * config.block_k * (1 if config.rounds else problem.dtype.itemsize)


def _computing(problem: FusedLinearProblem, config: SkinnyConfig) -> float:
    """Seconds in which a processor decodes the weights of a step and multiplies them."""
    weights = config.block_n * config.block_k * (2 if problem.gated else 1)
    rate = _OPERATIONS * (2 if config.rounds else 1)
    decoding = 0.0 if config.rounds else weights / _codes_decoded(problem, config)
    return 2 * weights * config.block_m / rate + decoding


def _codes_decoded(problem: FusedLinearProblem, config: SkinnyConfig) -> float:
    packing = packing_of(problem.weight_format, problem.in_features)
    if not packing.is_planar:
        return _BYTES_DECODED
    # The scales of mxfp4 lie four in a word.
    one_number = packing.group >= config.block_k or problem.weight_format.parts["scale"].dtype.itemsize == 1
    return _WORDS_DECODED if one_number else _GROUPS_DECODED


def _resident(problem: FusedLinearProblem, config: SkinnyConfig, platform: Platform) -> int:
    """Programs that a processor runs at a time."""
    weight_bytes, input_bytes = _tile_bytes(problem, config)
    # Codes that are decoded leave the processor's memory before they are multiplied.
    staged = config.num_stages if config.rounds else config.num_stages - 1
    held = staged * weight_bytes + config.num_stages * input_bytes + _OTHER_BYTES
    threads = _WARP * config.num_warps
    one_scale = packing_of(problem.weight_format, problem.in_features).is_one_scale_a_row(problem.in_features)
    copies = 1 if one_scale or config.makes_weights else 2
    sums = copies * config.block_n * config.block_m * (2 if problem.gated else 1) // threads
    registers = threads * min(sums + _OTHER_REGISTERS, 255)
    return max(1, min(platform.local_memory // held, _REGISTERS // registers, _WARPS // config.num_warps))
