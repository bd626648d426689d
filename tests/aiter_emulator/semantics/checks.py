"""The words in which the emulator refuses, and what it looks at to find what AITER would get silently wrong."""

from __future__ import annotations

import torch
from torch import Tensor


class SilentlyWrong(Exception):
    """The real kernel takes this call and returns numbers that its caller does not mean, or corrupts memory."""


def refuse_unless(condition: bool, message: str) -> None:
    """Refuse as AITER's host code does (TORCH_CHECK and the like)."""
    if not condition:
        raise RuntimeError(message)


def detect_unless(condition: bool, message: str) -> None:
    """Raise where the real kernel would go on."""
    if not condition:
        raise SilentlyWrong(message)


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Each dimension has the size given; None is any. Real kernels read sizes from one tensor and trust the rest."""
    fits = tensor.dim() == len(shape) and all(
        want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    detect_unless(fits, f"{name} has shape {tuple(tensor.shape)}, the kernel reads {shape}")


def check_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """The kernel reads the memory as one of `dtypes`, whatever the tensor says."""
    detect_unless(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, the kernel reads {_listed(dtypes)}")


def refuse_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """The host code dispatches on the dtype and raises for others."""
    refuse_unless(tensor.dtype in dtypes, f"{name}: {tensor.dtype} is not supported, only {_listed(dtypes)}")


def check_contiguous(name: str, tensor: Tensor) -> None:
    """The kernel walks the memory as if it were contiguous."""
    detect_unless(tensor.is_contiguous(), f"{name} has strides {tensor.stride()}, the kernel takes it as contiguous")


def check_rows(name: str, tensor: Tensor) -> None:
    """The kernel takes a stride between rows, and reads each row as contiguous."""
    detect_unless(tensor.stride(-1) == 1, f"{name}'s rows have stride {tensor.stride(-1)} between elements")


def check_aligned(name: str, tensor: Tensor, num_bytes: int) -> None:
    """Vector loads fault, or read elsewhere, at addresses that are not multiples of `num_bytes`."""
    detect_unless(tensor.data_ptr() % num_bytes == 0, f"{name} does not lie at a multiple of {num_bytes} bytes")


def check_apart(first: str, a: Tensor, second: str, b: Tensor) -> None:
    """Threads read and write in any order: what is written must not lie in what is read."""
    detect_unless(not overlap(a, b), f"{first} and {second} share memory")


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the address ranges of two tensors meet, holes between rows counted in unless both have the same rows."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a_first, a_last), (b_first, b_last) = address_range(a), address_range(b)
    return a_first < b_last and b_first < a_last and not _columns_apart(a, b)


def address_range(tensor: Tensor) -> tuple[int, int]:
    """First byte and the byte after the last that a tensor reaches."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (span + 1) * tensor.element_size()


def _columns_apart(a: Tensor, b: Tensor) -> bool:
    """Two column ranges of one matrix: same stride between rows, and neither reaches the other's columns."""
    if a.dim() < 2 or b.dim() < 2:
        return False
    pitch = a.stride(0) * a.element_size()
    widths = [address_range(tensor[0])[1] - address_range(tensor[0])[0] for tensor in (a, b)]
    offset = (b.data_ptr() - a.data_ptr()) % pitch if pitch else 0
    return b.stride(0) * b.element_size() == pitch and offset >= widths[0] and offset + widths[1] <= pitch


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)
