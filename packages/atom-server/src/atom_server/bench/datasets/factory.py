"""Which function reads each dataset."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from atom_server.bench.datasets.burstgpt import burstgpt_samples
from atom_server.bench.datasets.custom import custom_samples
from atom_server.bench.datasets.huggingface import huggingface_samples
from atom_server.bench.datasets.random_prompts import random_samples
from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.datasets.sharegpt import sharegpt_samples
from atom_server.bench.datasets.sonnet import sonnet_samples
from atom_server.bench.outcome import BenchError
from atom_server.bench.prompt_tokens import PromptTokens

DATASETS: dict[str, Callable[[DatasetOptions, PromptTokens], Awaitable[list[Sample]]]] = {
    "sharegpt": sharegpt_samples,
    "burstgpt": burstgpt_samples,
    "sonnet": sonnet_samples,
    "random": random_samples,
    "hf": huggingface_samples,
    "custom": custom_samples,
}


async def draw_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """As many samples as are asked for, in an order that the seed decides, repeated where there are too few.

    Raises:
        BenchError: the file is of another form, or nothing is left of it.
    """
    try:
        samples = await DATASETS[options.name](options, tokens)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BenchError(f"{options.path} is no dataset of the kind {options.name!r}: {reason}") from None
    if not samples:
        raise BenchError(f"{options.path} has no prompts that can be sent")
    order = random.Random(options.seed).sample(samples, len(samples))
    return [order[number % len(order)] for number in range(options.num_prompts)]
