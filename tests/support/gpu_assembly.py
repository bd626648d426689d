"""Runs the few instructions of NVIDIA's assembly that our kernels decode numbers with, one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_WORD = 0xFFFFFFFF


def run_assembly(text: str, given: Mapping[str, int]) -> dict[str, int]:
    """The registers by name after the lines of a block ``{ .reg ...; and.b32 a, $8, 15; ... }``."""
    registers = {name: value & _WORD for name, value in given.items()}
    for line in text.strip("{} ").split(";"):
        name, *operands = line.replace(",", " ").split() or [""]
        if name == "mov.b32" and len(operands) == 2:
            registers[operands[0]] = registers[operands[1]]
        elif name == "mov.b32":  # a word into two halves
            low, high, word = operands[0].strip("{}"), operands[1].strip("{}"), registers[operands[2]]
            registers[low], registers[high] = word & 0xFFFF, word >> 16
        elif name and name != ".reg":
            values = [registers[one] if one in registers else int(one, 0) for one in operands[1:]]
            registers[operands[0]] = _INSTRUCTIONS[name](*values) & _WORD
    return registers


def bfloat16_of(bits: int) -> torch.Tensor:
    return torch.tensor([bits << 16], dtype=torch.int64).to(torch.int32).view(torch.float32).to(torch.bfloat16)


def _permuted(low: int, high: int, places: int) -> int:
    """Each byte is one of those of two words."""
    both = low | high << 32
    return sum((both >> 8 * (places >> 4 * byte & 7) & 255) << 8 * byte for byte in range(4))


def _of_and_or(result: int, table: int) -> int:
    if table != 0xEA:
        raise NotImplementedError(f"only (a & b) | c is run here, not the table {table:#x}")
    return result


def _product(left: int, right: int) -> int:
    product = bfloat16_of(left & 0xFFFF) * bfloat16_of(right & 0xFFFF)
    return int(product.view(torch.int16).item()) & 0xFFFF


def _halves_of_e4m3(pair: int) -> int:
    """Two bytes as two numbers in float16."""
    codes = torch.tensor([pair & 255, pair >> 8 & 255], dtype=torch.uint8).view(torch.float8_e4m3fn)
    low, high = codes.to(torch.float16).view(torch.int16).tolist()
    return low & 0xFFFF | (high & 0xFFFF) << 16


_INSTRUCTIONS = {
    "and.b32": lambda left, right: left & right,
    "or.b32": lambda left, right: left | right,
    "shl.b32": lambda word, count: word << count,
    "shr.b32": lambda word, count: word >> count,
    "shf.l.wrap.b32": lambda low, high, count: (high << count) | (low >> 32 - count),
    "add.u32": lambda left, right: left + right,
    "lop3.b32": lambda word, mask, added, table: _of_and_or(word & mask | added, table),
    "mad.lo.u32": lambda left, right, added: left * right + added,
    "prmt.b32": _permuted,
    "cvt.rn.f16x2.e4m3x2": _halves_of_e4m3,
    "mul.bf16x2": lambda left, right: _product(left, right) | _product(left >> 16, right >> 16) << 16,
}
