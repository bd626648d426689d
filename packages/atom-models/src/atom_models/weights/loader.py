"""Loads a model's weights: from a checkpoint, from a host, or random ones."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from atom_models.checkpoint import Checkpoint
from atom_models.encoder import Encoder
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.quantization import ExpectedWeight
from atom_models.weights.filling import check_fit, fill
from atom_models.weights.gguf_source import open_gguf
from atom_models.weights.renamed_source import RenamedSource
from atom_models.weights.safetensors_source import SafetensorsSource, open_safetensors

logger = logging.getLogger(__name__)


def load_weights(model: nn.Module, checkpoint: Checkpoint, progress: bool = True) -> None:
    """Loads and packs all weights, with a progress bar on a terminal.

    Tensors are read layer by layer, wherever they are stored, and a layer is packed as soon as its last one came: so no
    more than one layer is held twice. What no layer uses is not read.

    Raises:
        CheckpointError: a file is missing, damaged or pickled; a weight is missing, unexpected or of a wrong shape.
            The message names it.
    """
    if checkpoint.format == "safetensors":
        source = open_safetensors(checkpoint.path)
        renamed = RenamedSource(source, model.own_name) if isinstance(model, Encoder) else source
        load_tensors(model, renamed, str(checkpoint.path), progress=progress)
        return
    source = open_gguf(checkpoint)
    order = check_fit(model, source.names(), str(checkpoint.path))
    tensors = source.read(order, _as_blocks(model))
    _fill(model, tensors, source.num_bytes, where=str(checkpoint.path), progress=progress)


def load_tensors(model: nn.Module, source: SafetensorsSource | RenamedSource, where: str, *, progress: bool) -> None:
    """As `load_weights`, from a source that says the shapes of its tensors before one is read.

    Args:
        where: the tensors come from, for messages.
    """
    order = check_fit(model, source.names(), where, source.headers())
    _fill(model, source.read(order), source.num_bytes, where=where, progress=progress)


def _fill(
    model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], num_bytes: int, *, where: str, progress: bool
) -> None:
    start = time.perf_counter()
    count = fill(model, _shown(tensors, num_bytes, progress), where)
    logger.info("loaded %d tensors (%.0f MB) in %.1f s", count, num_bytes / 1e6, time.perf_counter() - start)


def load_named_weights(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], where: Path | str) -> set[str]:
    """Loads and packs the weights that a host hands over one by one, under their names in the checkpoint.

    No tensor is kept longer than until its layer has taken it.

    Args:
        where: what messages call the source of the tensors.

    Returns:
        The names of all tensors given.

    Raises:
        CheckpointError: a weight is missing, unexpected or of a wrong shape. The message names it.
    """
    given: set[str] = set()
    fill(model, _noted(tensors, given), str(where))
    return given


def load_dummy_weights(
    model: nn.Module, checkpoint: Checkpoint | None = None, *, seed: int = 0, device: torch.device | str = "cpu"
) -> None:
    """Fills a model with random weights the way a checkpoint would: normal(0, 0.02), norms 1, biases 0.

    Those of a name are the same whichever others a model has: ranks need not hold the same ones.
    The checkpoint is not read; it may be a folder with nothing but `config.json`. The numbers are made on `device`:
    billions of them take seconds on a GPU, and minutes on a CPU.
    """
    generator = torch.Generator(device)
    expected = {name: weight for layer in loadable(model) for name, weight in expected_weights(layer).items()}

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in expected.items():
            generator.manual_seed(_seed_of(name, seed))
            yield name, _random(name, weight, generator)

    fill(model, made(), "dummy weights")


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest(), "little")


def _as_blocks(model: nn.Module) -> set[str]:
    """The tensors that a model wants as bytes of the blocks in which a GGUF file has them."""
    expected = (item for layer in loadable(model) for item in expected_weights(layer).items())
    return {name for name, weight in expected if weight.dtype is torch.uint8}


def _noted(tensors: Iterable[tuple[str, torch.Tensor]], names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        names.add(name)
        yield name, tensor


def _shown(
    tensors: Iterable[tuple[str, torch.Tensor]], num_bytes: int, progress: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    hidden = not (progress and sys.stderr.isatty())
    with tqdm(total=num_bytes, desc="Loading weights", unit="B", unit_scale=True, disable=hidden, leave=False) as bar:
        loaded = 0
        for name, tensor in tensors:
            yield name, tensor
            # Quantized tensors come out larger than they are stored: never pass the end.
            size = min(tensor.numel() * tensor.element_size(), num_bytes - loaded)
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
