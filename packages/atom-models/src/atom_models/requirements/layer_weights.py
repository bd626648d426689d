"""How a model's layers hold their weights on this machine, kind by kind: formats, operators and bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from atom_kernels.formats import Plain
from atom_kernels.platform import detect_platform
from atom_models.build_context import BuildContext
from atom_models.checkpoint import Checkpoint
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.weights import HeldWeights
from atom_models.loaded_model import default_dtype
from atom_models.model import build_model, stored_quantization
from atom_models.requirements.requirements import BLOCK_SIZE
from atom_models.weights.gguf_source import open_gguf
from atom_models.weights.safetensors_source import read_headers


@dataclass(frozen=True)
class LayerWeights(HeldWeights):
    """Layers that hold their weights alike, with the bytes of all of them.

    Attributes:
        name: what the checkpoint calls them, with ``*`` for numbers and ``{q_proj,k_proj}`` for those that run as one.
        stored: the number format of the checkpoint.
        rule: what the checkpoint's config says of them, or what was found instead; empty where it is silent.
        count: how many there are, those that run as one counted once.
    """

    name: str
    stored: str
    rule: str
    count: int


def layer_weights(
    checkpoint: Checkpoint, quantization: str | None = None, model_impl: str = "auto"
) -> tuple[LayerWeights, ...]:
    """The kinds of layers with matrices, in the order of the model, and the rest as one; no weight is read.

    Args:
        quantization, model_impl: as the engine's.

    Raises:
        UnsupportedQuantizationError, CheckpointError: as `load_model`.
    """
    platform = detect_platform()
    dtype = getattr(torch, default_dtype(checkpoint, platform.preferred_dtype))
    chosen = stored_quantization(checkpoint, quantization)
    # Tables of angles are not counted, and need not be long.
    context = BuildContext(
        platform=platform, dtype=dtype, quantization=chosen, max_model_len=BLOCK_SIZE, model_impl=model_impl
    )
    model = build_model(checkpoint, context)
    formats = _formats_in_files(checkpoint)
    kinds: dict[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], tuple[str, str, str]], list[int]] = {}
    for weights in (weights for layer in loadable(model) for weights in layer.weights()):
        if weights.held is None:
            continue
        held, stored = weights.held(), weights.stored or "the embedding's table"
        rule = "" if weights.asked is None else _numbers_left_out(chosen.for_layer(weights.asked, dtype).rule)
        if weights.layouts and weights.is_stored_plain:
            stored = _stored_plainly(checkpoint, formats, weights.names) or stored
        kind = (
            (held.held, held.operator, held.implementations, held.layouts),
            (kind_of_names(weights.names), stored, rule),
        )
        kinds.setdefault(kind, []).append(held.num_bytes)
    found = [LayerWeights(*held, sum(sizes), *kind, len(sizes)) for (held, kind), sizes in kinds.items()]
    return (*found, _rest(checkpoint, model, dtype, formats))


def _formats_in_files(checkpoint: Checkpoint) -> dict[str, str]:
    """The number format of each tensor by name; nothing where there is only a config."""
    if checkpoint.format == "gguf":
        return open_gguf(checkpoint).formats()
    headers = read_headers(checkpoint.path)
    return {name: Plain(header.dtype).name for name, header in headers.tensors.items()} if headers else {}


def _stored_plainly(checkpoint: Checkpoint, formats: Mapping[str, str], names: Collection[str]) -> str:
    """In what the checkpoint has the tensors of layers that compute with plain numbers; empty where that is not known.

    Without files it is what the config says of all of them.
    """
    if not formats:
        declared = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
        return f"{declared} (by the config: there are no weights)" if declared else "not known (there are no weights)"
    found = [formats.get(f"{name}.weight") or formats.get(name) for name in names]
    if None in found:  # experts go by one name
        within = tuple(f"{name}." for name in names)
        found = [stored for name, stored in formats.items() if name.startswith(within)]
    return " and ".join(dict.fromkeys(stored for stored in found if stored))


def _rest(checkpoint: Checkpoint, model: nn.Module, dtype: torch.dtype, formats: Mapping[str, str]) -> LayerWeights:
    """Norms, and whatever else has no matrix."""
    others = [layer for layer in loadable(model) if not any(weights.held for weights in layer.weights())]
    weights = {name: weight for layer in others for name, weight in expected_weights(layer).items()}
    num_bytes = sum(math.prod(weight.shape) * weight.dtype.itemsize for weight in weights.values())
    held = Plain(dtype).name
    stored = _stored_plainly(checkpoint, formats, sorted(weights)) or held
    return LayerWeights(held, "", (), (), num_bytes, "norms and others", stored, "", len(others))


def kind_of_names(names: tuple[str, ...]) -> str:
    """One name for layers that run as one, whatever their numbers."""
    parents, ends = zip(*(name.rpartition(".")[::2] for name in names), strict=True)
    end = ends[0] if len(ends) == 1 else f"{{{','.join(ends)}}}"
    return _numbers_left_out(f"{parents[0]}.{end}" if parents[0] else end)


def _numbers_left_out(text: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", text)
