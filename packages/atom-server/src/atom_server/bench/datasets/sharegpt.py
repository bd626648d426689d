"""Conversations of ShareGPT: the first turn is the prompt, and the second says how long the answer is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.prompt_tokens import PromptTokens

# Tokens of a prompt and of its answer, as vLLM's benchmark takes them.
_FEWEST, _MOST_OF_PROMPT, _MOST = 4, 1024, 2048


async def sharegpt_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """As many conversations as there are, at most those asked for; very short and very long ones are left out."""
    entries = json.loads(options.file.read_text(encoding="utf-8"))
    return await samples_of_turns((turns_of(entry) for entry in entries), options, tokens)


async def samples_of_turns(turns: Iterable[list[str]], options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """Samples of conversations; a length that was asked for spares the answers' counting."""
    samples: list[Sample] = []
    for asked, told, *_ in (texts for texts in turns if len(texts) > 1):
        if len(samples) == options.num_prompts:
            break
        if options.output_len is not None:
            samples.append(Sample(asked, options.output_len))
            continue
        num_asked, num_told = await tokens.count(asked), await tokens.count(told)
        fits = num_asked <= _MOST_OF_PROMPT and num_asked + num_told <= _MOST
        if min(num_asked, num_told) >= _FEWEST and fits:
            samples.append(Sample(asked, num_told, num_asked))
    return samples


def turns_of(entry: Mapping[str, Any]) -> list[str]:
    """The texts of a conversation, as ShareGPT writes it."""
    return [str(turn["value"]) for turn in entry.get("conversations") or ()]
