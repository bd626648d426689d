"""What requests ask for, ways in which an engine has to work, and what of their outputs must not depend on it."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from atom_core import LLMEngine, SamplingParams

VOCAB_SIZE = 512
# Settings of an engine that force a way of working upon it.
WAYS = {
    "plain": {},
    "step by step": {"async_scheduling": False},
    "chunks of 9": {"max_num_batched_tokens": 9, "max_num_seqs": 8},
    "preempted": {"num_kv_blocks": 7, "max_model_len": 100, "enable_prefix_caching": False},
}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "cool": {"temperature": 0.3},
    "warm": {"temperature": 1.0},
    "hot": {"temperature": 2.0},
    "filtered": {"temperature": 1.0, "top_k": 8, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.6},
    "stop ids": {"temperature": 1.0, "stop_token_ids": list(range(3, 512, 9)), "min_tokens": 6},
    "bias": {"temperature": 1.0, "logit_bias": {7: 4.0, 9: -3.0}},
    "few allowed": {"temperature": 1.0, "allowed_token_ids": [5, 6, 7, 8], "bad_words": ["a b"]},
    "logprobs": {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1},
    "samples": {"temperature": 1.0, "n": 3},
}
# Requests in each way that could tell them apart: one step after the other is the way with the fewest states, chunks
# of a prompt matter to what is asked of prompts, of their ends and of several samples, and a request that begins anew
# draws as it did whatever its temperature.
_FEW = {
    "step by step": ("greedy", "warm", "penalties", "samples"),
    "chunks of 9": ("greedy", "filtered", "stop ids", "logprobs", "samples"),
    "preempted": tuple(asked for asked in ASKED if asked not in ("cool", "hot")),
}
WAYS_AND_ASKED = [(way, asked) for way in WAYS for asked in ASKED if asked in _FEW.get(way, ASKED)]


def make_prompts(count: int, longest: int = 40) -> list[list[int]]:
    chooser = random.Random(7)
    return [[chooser.randrange(3, VOCAB_SIZE) for _ in range(chooser.randrange(1, longest))] for _ in range(count)]


def make_params(count: int, **asked: Any) -> list[SamplingParams]:
    params = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **asked})
    return [msgspec.structs.replace(params, seed=100 + index) for index in range(count)]


def run(engine: LLMEngine, prompts: list[list[int]], **asked: Any) -> list[dict[str, Any]]:
    outputs = engine.generate(prompts, make_params(len(prompts), **asked), use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    return outputs


def what_counts(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens, texts, ends and log-probabilities."""
    names = ("token_ids", "text", "finish_reason", "stop_reason", "logprobs", "prompt_logprobs")
    return [{name: output.get(name) for name in names} for output in outputs]
