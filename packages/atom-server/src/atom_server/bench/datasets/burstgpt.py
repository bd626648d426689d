"""BurstGPT: lengths of real requests, in a table; the prompts themselves are random."""

from __future__ import annotations

import csv
import random

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.prompt_tokens import PromptTokens


async def burstgpt_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """Requests of GPT-4 that did not fail, drawn by the seed; with repetitions where there are too few."""
    with options.file.open(encoding="utf-8", newline="") as file:
        rows = [
            (int(row["Request tokens"]), int(row["Response tokens"]))
            for row in csv.DictReader(file)
            if row["Model"] == "GPT-4" and int(row["Response tokens"]) > 0
        ]
    source, count = random.Random(options.seed), options.num_prompts
    drawn = source.sample(rows, count) if len(rows) >= count else source.choices(rows, k=count) if rows else []
    return [
        Sample(tokens.prompt(tokens.draw(source, asked)), options.output_len or told, asked) for asked, told in drawn
    ]
