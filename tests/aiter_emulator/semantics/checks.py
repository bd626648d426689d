"""What the emulator looks at: what AITER refuses, and what it would take and get wrong.

Host reads go through numpy: tests that forbid ``Tensor.item`` and the like while an adapter runs see the adapter only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import machine
from .errors import Refused, SilentlyWrong


def refuse_unless(condition: bool, message: str) -> None:
    """Refuse as AITER's host code does."""
    if not condition:
        raise Refused(message)


def detect_unless(condition: bool, message: str) -> None:
    """Raise where the real kernel would go on."""
    if not condition:
        raise SilentlyWrong(message)


def host(tensor: Tensor) -> np.ndarray:
    """The values of a tensor of any dtype, on the host; 16-bit floats and fp8 widened."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()


def check_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Each dimension has the size given; None is any. Real kernels read sizes from one tensor and trust the rest."""
    same_rank = tensor.dim() == len(shape)
    fits = same_rank and all(want in (None, have) for want, have in zip(shape, tensor.shape, strict=True))
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


def check_rows(name: str, tensor: Tensor, contiguous_dims: int = 1) -> None:
    """The kernel takes the first stride, and reads the last `contiguous_dims` dimensions of each row as contiguous."""
    expected, width = [], 1
    for size in reversed(tensor.shape[-contiguous_dims:]):
        expected.insert(0, width)
        width *= size
    pairs = zip(tensor.shape[-contiguous_dims:], tensor.stride()[-contiguous_dims:], expected, strict=True)
    fits = all(size == 1 or stride == want for size, stride, want in pairs)
    detect_unless(fits, f"{name} has strides {tensor.stride()}, the kernel reads rows of {width} contiguous elements")


def refuse_or_misread(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """The kernel reads this dtype: ``tensor.data_ptr<T>()`` refuses others on PyPI, git casts the bare pointer."""
    check = refuse_unless if machine.release() == "pypi" else detect_unless
    check(tensor.dtype == dtype, f"{name} is {tensor.dtype}, the kernel reads {dtype}")


def check_aligned(name: str, tensor: Tensor, num_bytes: int) -> None:
    """Vector loads fault, or read elsewhere, at addresses that are not multiples of `num_bytes`."""
    detect_unless(tensor.data_ptr() % num_bytes == 0, f"{name} does not lie at a multiple of {num_bytes} bytes")


def check_apart(**tensors: Tensor) -> None:
    """The first is written while the others are read or written, in any order: none may share its memory."""
    (name, written), *others = tensors.items()
    for other, tensor in others:
        detect_unless(not overlap(written, tensor), f"{name} and {other} share memory")


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share a byte; the gaps between strided rows do not count."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a_first, a_last), (b_first, b_last) = address_range(a), address_range(b)
    if a_last <= b_first or b_last <= a_first:
        return False
    start, stop = min(a_first, b_first), max(a_last, b_last)
    return bool((_bytes_taken(a, start, stop) & _bytes_taken(b, start, stop)).any())


def address_range(tensor: Tensor) -> tuple[int, int]:
    """First byte and the byte after the last that a tensor reaches."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (span + 1) * tensor.element_size()


def _bytes_taken(tensor: Tensor, start: int, stop: int) -> np.ndarray:
    taken = np.zeros(stop - start, dtype=bool)
    width = tensor.element_size()
    strides = [stride * width for stride in tensor.stride()] + [1]
    first = taken[tensor.data_ptr() - start :]
    np.lib.stride_tricks.as_strided(first, (*tensor.shape, width), strides)[...] = True
    return taken


def check_slots(slot_mapping: Tensor, num_slots: int) -> np.ndarray:
    """The slots on the host: within the cache, or negative for tokens that are skipped, and none taken twice."""
    slots = host(slot_mapping)
    taken = slots[slots >= 0]
    detect_unless(bool((taken < num_slots).all()), f"slots reach {taken.max(initial=0)}, the cache has {num_slots}")
    detect_unless(len(np.unique(taken)) == len(taken), "two tokens race for one slot")
    return slots


def check_indices(name: str, indices: Tensor, limit: int) -> np.ndarray:
    """Indices on the host: the kernel reads at each without looking, so all are in ``[0, limit)``."""
    values = host(indices)
    detect_unless(bool(((values >= 0) & (values < limit)).all()), f"{name} leaves [0, {limit})")
    return values


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype) for dtype in dtypes)
