"""What quantization costs a model on a text: perplexities, and how far a model strays from its plain self."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atom_server.bench.outcome import BenchError

if TYPE_CHECKING:
    from atom_core.models import LoadedModel

# Weights as the engine holds them without a flag.
STORED = "stored"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared with what.

    Attributes:
        model: folder, .gguf file or name.
        against: the model that is the baseline, whose weights are made plain.
        formats: number formats of the model's weights, each once.
        dtype: what is computed in; None takes what is fast here.
        window: tokens read at once.
    """

    model: str
    against: str
    formats: tuple[str, ...]
    kv_cache_dtype: str
    dtype: str | None
    window: int


@dataclass(frozen=True)
class Reading:
    """How a model read the text; the baseline has nothing to be compared with."""

    model: str
    quantization: str
    kv_cache_dtype: str
    num_tokens: int
    perplexity: float
    perplexity_change: float | None = None
    kl_divergence: float | None = None
    top1_agreement: float | None = None


def compare(comparison: Comparison, text: str) -> tuple[LoadedModel, list[Reading]]:
    """The baseline's model, and a reading of the baseline and of each format.

    Raises:
        BenchError: the text is too short for a window, the window too long for a model, or tokens differ.
    """
    # Imported here: other commands go without torch.
    from atom_core.models import ReferenceModel, load_model, open_checkpoint, resolve_model, stored_quantization

    path, plain_path = resolve_model(comparison.model), resolve_model(comparison.against)
    formats = {name: None if name == STORED else name for name in comparison.formats}
    for requested in formats.values():
        stored_quantization(open_checkpoint(path), requested)  # refuses an unknown one before anything is loaded
    windows = _windows(text, path, plain_path, comparison.window)
    plain = load_model(plain_path, comparison.dtype, quantization="none", max_model_len=comparison.window)
    baseline = ReferenceModel(plain, windows)
    num_tokens, perplexity = baseline.num_tokens, baseline.perplexity
    readings = [Reading(comparison.against, plain.context.quantization.name, "auto", num_tokens, perplexity)]
    load = partial(load_model, path, plain.context.dtype, max_model_len=comparison.window)
    for name, requested in formats.items():
        # No name for the model: it goes before the next one is loaded.
        found = baseline.measure(load(quantization=requested, kv_cache_dtype=comparison.kv_cache_dtype), name)
        readings.append(
            Reading(
                *(comparison.model, name, comparison.kv_cache_dtype, num_tokens, found.perplexity),
                perplexity_change=found.perplexity / perplexity - 1,
                kl_divergence=found.kl_divergence,
                top1_agreement=found.top1_agreement,
            )
        )
    return plain, readings


def _windows(text: str, path: Path, plain_path: Path, size: int) -> list[list[int]]:
    """The text's tokens, which both models must agree on."""
    from atom_core.models import AccuracyError, open_checkpoint, windows_of
    from atom_core.tokenization import Tokenizer

    checkpoints = [open_checkpoint(each) for each in dict.fromkeys((path, plain_path))]
    for checkpoint in checkpoints:
        if size > checkpoint.max_model_len:
            raise BenchError(
                f"--window {size} is longer than {checkpoint.path} reads: {checkpoint.max_model_len} tokens"
            )
    tokenizers = [Tokenizer.from_checkpoint(checkpoint) for checkpoint in checkpoints]
    token_ids, *others = [tokenizer.encode(text, add_special_tokens=False) for tokenizer in tokenizers]
    if any(other != token_ids for other in others):
        raise BenchError(f"{path} and {plain_path} have tokenizers that differ, so that no token can be compared")
    try:
        return windows_of(token_ids, size, tokenizers[0].encode(""))
    except AccuracyError as error:
        raise BenchError(str(error)) from None
