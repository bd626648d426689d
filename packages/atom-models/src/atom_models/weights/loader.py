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
from atom_models.layers.loadable import ChoosesNames, Loadable
from atom_models.quantization import ExpectedWeight, Headers
from atom_models.weights.gguf_source import open_gguf
from atom_models.weights.safetensors_source import SafetensorsSource, open_safetensors

logger = logging.getLogger(__name__)

# Tables that old checkpoints stored although they follow from the config.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached", ".masked_bias")
# Scales of keys and values in a cache of eight bits, in the spellings of several quantizers.
_CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale", ".output_scale")
_NAMES_SHOWN = 8


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
    names = source.names()
    for layer in model.modules():
        if isinstance(layer, ChoosesNames):
            layer.choose_names(names)
    if isinstance(source, SafetensorsSource):
        _check_headers(model, source.headers())
    start = time.perf_counter()
    count = _fill(model, _shown(source, progress), str(checkpoint.path))
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
    _fill(model, _noted(tensors, given), str(where))
    return given


def load_dummy_weights(
    model: nn.Module, checkpoint: Checkpoint | None = None, *, seed: int = 0, device: torch.device | str = "cpu"
) -> None:
    """Fills a model with random weights the way a checkpoint would: normal(0, 0.02), norms 1, biases 0.

    The checkpoint is not read; it may be a folder with nothing but `config.json`. The numbers are made on `device`:
    billions of them take seconds on a GPU, and minutes on a CPU.
    """
    generator = torch.Generator(device).manual_seed(seed)
    expected = {name: weight for layer in _loadable(model) for name, weight in layer.expected_weights().items()}
    _fill(model, ((name, _random(name, weight, generator)) for name, weight in expected.items()), "dummy weights")


def _fill(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], where: str) -> int:
    layers = _loadable(model)
    owners = {name: layer for layer in layers for name in layer.expected_weights()}
    outstanding = {id(layer): len(layer.expected_weights()) for layer in layers}
    ignored = frozenset().union(*(layer.ignored_weights for layer in layers))
    # Whole layers that a checkpoint has and the model does not use, such as those that predict further tokens.
    ignored_prefixes = tuple(prefix for module in model.modules() for prefix in getattr(module, "ignored_prefixes", ()))
    seen: set[str] = set()
    unexpected: list[str] = []
    num_cache_scales = 0
    for name, tensor in tensors:
        layer = owners.get(name)
        if layer is None:
            known = name in ignored or name.endswith(_IGNORED_SUFFIXES) or name.startswith(ignored_prefixes)
            if not known and name.endswith(_CACHE_SCALES):
                num_cache_scales += 1
            elif not known:
                unexpected.append(name)
            continue
        if name in seen:
            raise CheckpointError(f"{where} holds the weight {name} twice")
        seen.add(name)
        layer.load_shard(name, tensor)
        outstanding[id(layer)] -= 1
        if not outstanding[id(layer)]:
            layer.finish()
    if num_cache_scales:
        logger.warning("%s has %d scales for an fp8 KV cache: not used, the scale is 1", where, num_cache_scales)
    missing = [name for name in owners if name not in seen]
    if missing or unexpected:
        parts = [_list("missing", missing), _list("unexpected", unexpected)]
        raise CheckpointError(f"{where} does not fit the model: {'; '.join(part for part in parts if part)}")
    for layer in layers:
        if not layer.expected_weights():
            layer.finish()
    return len(seen)


def _check_headers(model: nn.Module, headers: Headers) -> None:
    """Refuses tensors of wrong shapes before the first is read."""
    for layer in _loadable(model):
        for name, expected in layer.expected_weights().items():
            header = headers.tensors.get(name)
            reason = None if header is None else expected.why_not(header.shape, header.dtype)
            if reason is not None:
                raise CheckpointError(f"the weight {name} {reason}")


def _loadable(model: nn.Module) -> list[Loadable]:
    return [module for module in model.modules() if isinstance(module, Loadable)]


def _noted(tensors: Iterable[tuple[str, torch.Tensor]], names: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        names.add(name)
        yield name, tensor


def _list(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {kind} weight{'s' * (len(names) > 1)}: {', '.join(names[:_NAMES_SHOWN])}{more}"


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
