"""Lines of JSON with a prompt each, and maybe how many tokens its answer is to have."""

from __future__ import annotations

import json

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.outcome import BenchError
from atom_server.bench.prompt_tokens import PromptTokens


async def custom_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """The first lines, as they stand.

    Raises:
        BenchError: a line has no length, and none was asked for.
    """
    samples = []
    # Lines of JSON end at line feeds alone: texts may have other separators inside.
    for line in options.file.read_text(encoding="utf-8").split("\n"):
        if line.strip() and len(samples) < options.num_prompts:
            entry = json.loads(line)
            output_len = options.output_len or int(entry.get("output_tokens") or 0)
            if output_len < 1:
                raise BenchError(f"{options.file}: a line has no output_tokens; give --custom-output-len")
            samples.append(Sample(str(entry["prompt"]), output_len))
    return samples
