"""Blocks of GGUF numbers to float tensors: the common formats in torch, the others through the gguf library."""

from __future__ import annotations

from collections.abc import Callable

import torch

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def dequantize(raw: memoryview, type_name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The numbers of a tensor: plain formats as they are (a view of `raw`), quantized ones in float32.

    Raises:
        ValueError: nothing here can read the format.
    """
    if type_name in _PLAIN:
        return torch.frombuffer(raw, dtype=_PLAIN[type_name]).view(shape)
    if type_name in _BLOCKS:
        return _BLOCKS[type_name](torch.frombuffer(raw, dtype=torch.uint8)).view(shape)
    return _by_library(raw, type_name, shape)


def _q8_0(raw: torch.Tensor) -> torch.Tensor:
    """32 numbers of 8 bits, one scale."""
    blocks = raw.view(-1, 34)
    values = blocks[:, 2:].view(torch.int8).float()
    return values.mul_(_halves(blocks, 0))


def _q4_0(raw: torch.Tensor) -> torch.Tensor:
    """32 numbers of 4 bits around 8, one scale."""
    blocks = raw.view(-1, 18)
    return _nibbles(blocks[:, 2:]).sub_(8.0).mul_(_halves(blocks, 0))


def _q4_1(raw: torch.Tensor) -> torch.Tensor:
    """32 numbers of 4 bits, one scale and one minimum."""
    blocks = raw.view(-1, 20)
    return _nibbles(blocks[:, 4:]).mul_(_halves(blocks, 0)).add_(_halves(blocks, 2))


def _halves(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at a byte of each block, as a float32 column."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Low halves of the 16 bytes first, then the high ones."""
    values = torch.empty(packed.shape[0], 32, dtype=torch.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


def _by_library(raw: memoryview, type_name: str, shape: tuple[int, ...]) -> torch.Tensor:
    # Imported here: it is not needed for the common formats, and takes a while.
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as dequantize_blocks

    if not hasattr(GGMLQuantizationType, type_name):
        raise ValueError(f"the installed gguf library does not know the format {type_name}; upgrade it")
    try:
        values = dequantize_blocks(np.frombuffer(raw, dtype=np.uint8), GGMLQuantizationType[type_name])
    except NotImplementedError:
        raise ValueError(f"the installed gguf library cannot dequantize {type_name}") from None
    return torch.from_numpy(values).view(shape)


_BLOCKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
