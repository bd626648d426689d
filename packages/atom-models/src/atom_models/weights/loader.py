"""Hands every tensor of a checkpoint to its layer, and finishes each layer at its last one."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from tqdm import tqdm

from atom_models.checkpoint import Checkpoint, CheckpointError
from atom_models.layers.loadable import ChoosesNames
from atom_models.quantization import ExpectedWeight
from atom_models.weights.accounting import Accounting, check_fit, loadable_layers
from atom_models.weights.gguf_source import open_gguf
from atom_models.weights.safetensors_source import SafetensorsSource, open_safetensors

logger = logging.getLogger(__name__)


class WeightSource(Protocol):
    """Named tensors under Hugging Face names, read as they are asked for."""

    @property
    def num_bytes(self) -> int: ...
    def names(self) -> frozenset[str]: ...
    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...


def load_weights(model: nn.Module, checkpoint: Checkpoint, progress: bool = True) -> None:
    """Loads and packs all weights, with a progress bar on a terminal.

    A layer is packed as soon as its last tensor came, so that no more than one layer is held twice.

    Raises:
        CheckpointError: a file is missing, damaged or pickled; a weight is missing, unexpected or of a wrong shape.
            The message names it.
    """
    source = open_gguf(checkpoint) if checkpoint.format == "gguf" else open_safetensors(checkpoint.path)
    headers = source.headers() if isinstance(source, SafetensorsSource) else None
    names = source.names() if headers is None else headers.tensors.keys()
    accounting = check_fit(model, names, str(checkpoint.path), headers)
    start = time.perf_counter()
    count = _fill(accounting, _shown(source, progress), str(checkpoint.path))
    logger.info("loaded %d tensors (%.0f MB) in %.1f s", count, source.num_bytes / 1e6, time.perf_counter() - start)


def load_named_weights(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], where: Path | str) -> set[str]:
    """Loads and packs the weights that a host hands over one by one, under their names in the checkpoint.

    Args:
        where: they come from, for messages.

    Returns:
        The names of all tensors given.

    Raises:
        CheckpointError: a weight is missing, unexpected or of a wrong shape. The message names it.
    """
    choosing = [layer for layer in model.modules() if isinstance(layer, ChoosesNames)]
    if choosing:
        # Which of two spellings these weights have shows in their names alone, so all must be known first.
        tensors = list(tensors)
        for layer in choosing:
            layer.choose_names({name for name, _ in tensors})
    given: set[str] = set()
    _fill(Accounting(model), _noted(tensors, given), str(where))
    return given


def load_dummy_weights(
    model: nn.Module, checkpoint: Checkpoint | None = None, *, seed: int = 0, device: torch.device | str = "cpu"
) -> None:
    """Fills a model with random weights the way a checkpoint would: normal(0, 0.02), norms 1, biases 0.

    The checkpoint is not read; it may be a folder with nothing but `config.json`. The numbers are made on `device`:
    billions of them take seconds on a GPU, and minutes on a CPU.
    """
    generator = torch.Generator(device).manual_seed(seed)
    expected = {name: weight for layer in loadable_layers(model) for name, weight in layer.expected_weights().items()}
    random = ((name, _random(name, weight, generator)) for name, weight in expected.items())
    _fill(Accounting(model), random, "dummy weights")


def _fill(accounting: Accounting, tensors: Iterable[tuple[str, torch.Tensor]], where: str) -> int:
    outstanding = {id(layer): len(layer.expected_weights()) for layer in accounting.layers}
    seen: set[str] = set()
    others: set[str] = set()
    for name, tensor in tensors:
        layer = accounting.owners.get(name)
        if layer is None:
            others.add(name)
            continue
        if name in seen:
            raise CheckpointError(f"{where} holds the weight {name} twice")
        seen.add(name)
        layer.load_shard(name, tensor)
        outstanding[id(layer)] -= 1
        if not outstanding[id(layer)]:
            layer.finish()
    accounting.check(seen | others, where)
    num_cache_scales = sum(map(accounting.is_cache_scale, others))
    if num_cache_scales:
        logger.warning("%s has %d scales for an fp8 KV cache: not used, the scale is 1", where, num_cache_scales)
    for layer in accounting.layers:
        if not layer.expected_weights():
            layer.finish()
    return len(seen)


def _noted(tensors: Iterable[tuple[str, torch.Tensor]], names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        names.add(name)
        yield name, tensor


def _shown(source: WeightSource, progress: bool) -> Iterator[tuple[str, torch.Tensor]]:
    hidden = not (progress and sys.stderr.isatty())
    with tqdm(
        total=source.num_bytes, desc="Loading weights", unit="B", unit_scale=True, disable=hidden, leave=False
    ) as bar:
        loaded = 0
        for name, tensor in source:
            yield name, tensor
            # Quantized tensors come out larger than they are stored: never pass the end.
            size = min(tensor.numel() * tensor.element_size(), source.num_bytes - loaded)
            loaded += size
            bar.update(size)


def _random(name: str, weight: ExpectedWeight, generator: torch.Generator) -> torch.Tensor:
    shape, dtype, device = weight.shape, weight.dtype, generator.device
    if weight.dummy is not None:
        return torch.full(shape, weight.dummy, device=device).to(dtype)
    if not dtype.is_floating_point:
        most = torch.iinfo(dtype).max
        return torch.randint(
            0 if dtype is torch.uint8 else -most, most, shape, generator=generator, device=device, dtype=dtype
        )
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype, device=device)
    if dtype.itemsize == 1:
        return torch.empty(shape, device=device).normal_(0.0, 0.02, generator=generator).to(dtype)
    return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, 0.02, generator=generator)
