"""Prompts of tokens at random."""

from __future__ import annotations

import random

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.prompt_tokens import PromptTokens


async def random_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """So many prompts, the same for the same seed."""
    source = random.Random(options.seed)
    prefix = tokens.draw(source, options.prefix_len)
    samples = []
    for _ in range(options.num_prompts):
        drawn = prefix + tokens.draw(source, _length(source, options.input_len, options.range_ratio))
        output_len = options.output_len or _length(source, options.output_len_random, options.range_ratio)
        samples.append(Sample(tokens.prompt(drawn), output_len, len(drawn)))
    return samples


def _length(source: random.Random, most: int, ratio: float) -> int:
    return source.randint(max(1, int(most * ratio)), most)
