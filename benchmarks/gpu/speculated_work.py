"""What both engines do while speculation is measured. It imports neither: vLLM's process has no package of ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.engines import HEAD_START

# The probability that a draft is right if those before it are, and drafts of a request in a step.
ACCEPTANCE, NUM_DRAFTS = 0.7, 3
# Tokens that a request has when a run is timed from, and those on the average that it is timed for.
BEFORE, TIMED = 8, 128
MAX_BATCHED_TOKENS = 8192
DRAFT_VOCABULARY = 32000


def write_draft_config(target: Mapping[str, Any], folder: Path) -> Path:
    """The folder of an EAGLE-3 head of one layer like those of `target`, which holds only `config.json`."""
    names = (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
        *("rms_norm_eps", "rope_theta", "max_position_embeddings", "torch_dtype", "hidden_act"),
    )
    config = {name: target[name] for name in names} | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "attention_bias": False, "tie_word_embeddings": False,
        "draft_vocab_size": min(DRAFT_VOCABULARY, target["vocab_size"]),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rate_of(counts: Mapping[str, int], step: Callable[[], object], num_tokens: int) -> float:
    """Tokens a second of all requests, from when each has some on, over so many of each on the average.

    Args:
        counts: how many tokens each request has, which `step` brings up to date. Requests may get `max_tokens_for` so
            many.

    Raises:
        RuntimeError: a request ended meanwhile.
    """
    while min(counts.values()) < BEFORE:
        step()
    started, before = time.perf_counter(), sum(counts.values())
    while sum(counts.values()) < before + num_tokens * len(counts):
        step()
    seconds, generated = time.perf_counter() - started, sum(counts.values()) - before
    if max(counts.values()) >= max_tokens_for(num_tokens):
        raise RuntimeError("a request ended before the others had their tokens: the timing would mean nothing")
    return generated / seconds


def max_tokens_for(num_tokens: int) -> int:
    """More than any request gets while all get `num_tokens` on the average."""
    return BEFORE + num_tokens + num_tokens // 2 + HEAD_START
