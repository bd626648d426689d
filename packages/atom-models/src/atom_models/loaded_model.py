"""`load_model`: a model that gives logits for batches of token ids, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atom_kernels.host_threads.waiting import keep_to_quota
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import CacheFormat
from atom_models.build_context import BuildContext
from atom_models.checkpoint import Checkpoint, open_checkpoint
from atom_models.layers.shared_vocabulary import SharedVocabulary
from atom_models.model import build_model, stored_quantization
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.vision.placing import place_pictures
from atom_models.weights import load_weights


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights.

    Attributes:
        model: the architecture's module.
        checkpoint: what it was loaded from.
        context: how it was built.
    """

    model: nn.Module
    checkpoint: Checkpoint
    context: BuildContext

    def logits(
        self, sequences: Sequence[Sequence[int]], images: Sequence[Sequence[torch.Tensor]] | None = None
    ) -> list[torch.Tensor]:
        """Float32 ``[len(tokens), vocabulary]`` for each sequence of token ids, all run as one ragged batch.

        Args:
            images: the pictures of each sequence, uint8 ``[height, width, 3]``, whose sizes are some that
                ``model.vision_spec.fitted`` gives. Each stands in the place of an image token, and has as many rows in
                the result as the tower makes tokens of it.

        Raises:
            ValueError: no sequences, an empty one, one longer than the context, an id outside the vocabulary, or a
                model without a head; pictures for a model that takes none, of a wrong shape, or another number of them
                than of image tokens.
        """
        if not self.checkpoint.has_head:
            raise ValueError(
                f"{self.checkpoint.path} gives no logits, {self.checkpoint.why_no_text}: use hidden_states()"
            )
        return [self.logits_of(hidden_states) for hidden_states in self.hidden_states(sequences, images)]

    def logits_of(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 ``[rows, vocabulary]`` of hidden states, which are ``[rows, hidden_size]``."""
        compute: Any = self.model.compute_logits
        vocabulary = SharedVocabulary(self.context.collectives, self.checkpoint.text_config.get("vocab_size", 0))
        with torch.inference_mode():
            return vocabulary.whole(compute(hidden_states))

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], images: Sequence[Sequence[torch.Tensor]] | None = None
    ) -> list[torch.Tensor]:
        """``[len(tokens), hidden_size]`` after the last norm, for each sequence of token ids; as `logits` otherwise."""
        prompts = [SequenceStep(list(tokens), 0, ()) for tokens in sequences]
        if images is not None:
            prompts = place_pictures(self.model, sequences, images)
        self._check([prompt.token_ids for prompt in prompts])
        # Attention takes sequences of one token first.
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].token_ids))
        block_size = self.context.block_size
        steps, num_blocks = [], 0
        for index in order:
            needed = -(-len(prompts[index].token_ids) // block_size)
            blocks = range(num_blocks, num_blocks + needed)
            steps.append(replace(prompts[index], block_ids=blocks, slot=len(steps)))
            num_blocks += needed
        run = PagedRun(self.model, num_blocks, self.context.device, num_slots=len(steps))
        rows = dict(zip(order, run.step(steps), strict=True))
        return [rows[index] for index in range(len(sequences))]

    def _check(self, sequences: Sequence[Sequence[int]]) -> None:
        longest, vocab_size = self.checkpoint.max_model_len, self.checkpoint.text_config.get("vocab_size", 0)
        longest = self.context.max_model_len or longest
        if not sequences:
            raise ValueError("there are no sequences to run")
        for index, tokens in enumerate(sequences):
            if not tokens or len(tokens) > longest:
                raise ValueError(f"sequence {index} has {len(tokens)} tokens; the model takes 1 to {longest}")
            outside = [token for token in tokens if not 0 <= token < vocab_size]
            if outside:
                raise ValueError(f"sequence {index} has the token id {outside[0]}; the vocabulary ends at {vocab_size}")


def load_model(
    model: str | Path,
    dtype: torch.dtype | str | None = None,
    *,
    quantization: str | None = None,
    device: torch.device | str | None = None,
    kv_cache_dtype: str = "auto",
    block_size: int = 16,
    max_model_len: int | None = None,
    model_impl: str = "auto",
    progress: bool = True,
) -> LoadedModel:
    """Opens, builds and loads a model.

    Args:
        model: folder, ``.gguf`` file, or a name that `resolve_model` knows.
        dtype: what is computed in; None is float32 for float32 checkpoints, and what is fast here for others.
        quantization: round plain weights while loading: "int8", "int4", "fp8", "fp8_block" or "mxfp4"; "none" also
            makes plain numbers of a GGUF file's, which stay packed without it.
        device: where it runs; None is the platform's.
        kv_cache_dtype: what keys and values are cached in: "auto", "bf16" or "fp8", as the engine's --kv-cache-dtype.
        block_size: tokens of a cache block.
        max_model_len: longest sequence that will be run; None is the model's own. Some rotations (longrope, dynamic)
            depend on it.
        model_impl: "atom" takes a file of this package, "transformers" takes its layers over our attention, and "auto"
            the first where there is one.
        progress: show a bar on a terminal.

    Raises:
        CheckpointError, UnsupportedArchitectureError, UnsupportedQuantizationError: one line that says what is wrong.
        ValueError: an unknown dtype or kv_cache_dtype.
    """
    platform = detect_platform()
    path = Path(model)
    if not path.exists():
        from atom_models.hub import resolve_model

        path = resolve_model(str(model))
    checkpoint = open_checkpoint(path)
    computed_in = _torch_dtype(dtype or default_dtype(checkpoint, platform.preferred_dtype))
    context = BuildContext(
        platform=platform,
        dtype=computed_in,
        device=device or platform.device,
        quantization=stored_quantization(checkpoint, quantization),
        cache=CacheFormat.asked(kv_cache_dtype, str(computed_in).removeprefix("torch."), platform.float8),
        block_size=block_size,
        max_model_len=max_model_len,
        model_impl=model_impl,
    )
    if torch.device(context.device).type == "cpu":
        keep_to_quota()
    module = build_model(checkpoint, context)
    load_weights(module, checkpoint, progress)
    return LoadedModel(module, checkpoint, context)


def default_dtype(checkpoint: Checkpoint, preferred: str) -> str:
    """Float32 for checkpoints that say so, else what the platform prefers."""
    return "float32" if checkpoint.dtype == "float32" else preferred


def _torch_dtype(dtype: torch.dtype | str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is not one of float32, bfloat16, float16")
    return found
