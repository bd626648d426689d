"""Lines of a poem: all prompts begin with the same lines, and go on with lines drawn from the rest."""

from __future__ import annotations

import random

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.outcome import BenchError
from atom_server.bench.prompt_tokens import PromptTokens

_INSTRUCTION = "Pick as many lines as you can from these poem lines:\n"


async def sonnet_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """Prompts of about as many tokens as were asked for, by the mean length of a line.

    Raises:
        BenchError: the instruction alone is longer, or the prefix than the prompt.
    """
    lines = [line + "\n" for line in options.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        return []
    mean = await tokens.count("".join(lines)) / len(lines)
    instruction = await tokens.count(_INSTRUCTION)
    if not instruction < options.sonnet_prefix_len <= options.sonnet_input_len:
        raise BenchError(
            f"--sonnet-prefix-len {options.sonnet_prefix_len} is not above the {instruction} tokens of the instruction "
            f"and at most --sonnet-input-len {options.sonnet_input_len}"
        )
    num_lines = round((options.sonnet_input_len - instruction) / mean)
    num_common = min(round((options.sonnet_prefix_len - instruction) / mean), num_lines, len(lines))
    source, output_len = random.Random(options.seed), options.output_len or options.sonnet_output_len
    samples = []
    for _ in range(options.num_prompts):
        drawn = lines[:num_common] + source.choices(lines, k=num_lines - num_common)
        prompt = _INSTRUCTION + "".join(drawn)
        samples.append(Sample(prompt, output_len, await tokens.count(prompt)))
    return samples
