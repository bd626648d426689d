"""A fingerprint of how a model came to be, for vLLM's cache of compiled graphs.

Graphs name our operators by numbers, given out as layers finish loading. vLLM reuses a graph where configuration and
sources are the same; the numbers are the same only if all models of the process were loaded from tensors in the same
order, for the same platform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from atom_kernels.platform import detect_platform
from atom_vllm import __version__

if TYPE_CHECKING:
    import torch

# What this process has loaded so far, one model after the other.
_digest = hashlib.sha256()


def note_order(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights` as they are, while their names go into the fingerprint."""
    for name, tensor in weights:
        _digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        yield name, tensor


def mark(vllm_config: Any) -> None:
    """Put the fingerprint where vLLM's hash of its configuration sees it."""
    platform = detect_platform()
    _digest.update(f"{__version__} {platform.name} {platform.arch} {platform.backends}\n".encode())
    if isinstance(vllm_config.additional_config, dict):
        vllm_config.additional_config["atom"] = _digest.hexdigest()
