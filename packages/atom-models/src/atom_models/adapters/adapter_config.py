"""`AdapterConfig`: what adapter_config.json says of an adapter, as PEFT writes it. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from atom_models.adapters.errors import AdapterError
from atom_models.adapters.patterns import Patterns

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MOST_BYTES = 1 << 20
# What would change more than linears by products of two matrices, and why it is not served.
_UNSERVED = {
    "use_dora": "DoRA scales the columns of whole weights",
    "use_qalora": "QA-LoRA pools the inputs of A",
    "lora_bias": "biases of B are not served",
    "modules_to_save": "whole modules beside the base model's are not served",
    "layer_replication": "the base model's layers stay as they are",
    "target_parameters": "matrices of experts take no adapters",
    "trainable_token_indices": "the embedding takes no adapters",
    "alora_invocation_tokens": "an adapter holds for all tokens of a request",
}
# Ways to begin training that change the base model's weights, unless the adapter was converted as it was saved.
_CHANGING_STARTS = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True)
class AdapterConfig:
    """How to read the matrices of an adapter.

    Attributes:
        rank: rows of A and columns of B, where `ranks` has no other number.
        alpha: B @ A is multiplied by alpha / rank, where `alphas` has no other number.
        by_root: it is multiplied by alpha / sqrt(rank) instead (rsLoRA, https://arxiv.org/abs/2312.03732).
        ranks, alphas: numbers of single modules.
    """

    rank: int
    alpha: float
    by_root: bool
    ranks: Patterns
    alphas: Patterns

    @classmethod
    def read(cls, folder: Path, *, max_rank: int) -> AdapterConfig:
        """What the folder's file says.

        Args:
            max_rank: the largest rank that is served.

        Raises:
            AdapterError: it is missing or damaged, or asks for what is not served.
        """
        path = folder / CONFIG
        try:
            given = _read_object(folder, path)
            config = cls(
                rank=_rank(given.get("r", 8)),
                alpha=_alpha(given.get("lora_alpha", 8)),
                by_root=given.get("use_rslora") is True,
                ranks=Patterns("rank_pattern", given.get("rank_pattern") or {}),
                alphas=Patterns("alpha_pattern", given.get("alpha_pattern") or {}),
            )
            _check_served(given)
        except AdapterError as error:
            raise AdapterError(f"{path}: {error}") from None
        if config.rank > max_rank:
            raise AdapterError(f"{path}: r is {config.rank}, above max_lora_rank {max_rank}: raise that")
        return config

    def rank_of(self, module: str) -> int:
        """The rank of a module."""
        return int(self.ranks.number_of(module, self.rank))

    def scaling_of(self, module: str) -> float:
        """What B @ A of a module is multiplied by."""
        rank = self.rank_of(module)
        return self.alphas.number_of(module, self.alpha) / (sqrt(rank) if self.by_root else rank)


def _read_object(folder: Path, path: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        raise AdapterError(f"{folder} is no folder: an adapter is one with {CONFIG} and {WEIGHTS}")
    if not path.is_file():
        raise AdapterError(f"the file is missing: an adapter is a folder with {CONFIG} and {WEIGHTS}, as PEFT saves it")
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        raise AdapterError(
            "adapter_model.bin is pickled, which is never loaded because it can run code: save with safetensors"
            if pickled
            else f"there is no {WEIGHTS} beside it"
        )
    try:
        if path.stat().st_size > MOST_BYTES:
            raise AdapterError(f"it has more than {MOST_BYTES} bytes")
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(f"it cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise AdapterError("it must be an object of JSON")
    return given


def _check_served(given: Mapping[str, Any]) -> None:
    kind = given.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"peft_type is {kind!r}; served is LORA alone")
    if given.get("bias", "none") != "none":
        raise AdapterError(f"bias is {given['bias']!r}: biases are not served; train with bias none")
    for field, reason in _UNSERVED.items():
        if given.get(field):
            raise AdapterError(f"{field} is set: {reason}; merge the adapter into the model, or train without it")
    start = given.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGING_STARTS):
        raise AdapterError(
            f"init_lora_weights is {start!r}, which changes the base model's weights: convert the adapter as it is "
            "saved (path_initial_model_for_weight_conversion)"
        )


def _rank(rank: Any) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise AdapterError(f"r is {rank!r}; it must be a whole number above 0")
    return rank


def _alpha(alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e6:
        raise AdapterError(f"lora_alpha is {alpha!r}; it must be above 0")
    return float(alpha)
