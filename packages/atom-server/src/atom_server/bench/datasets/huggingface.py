"""Datasets of Hugging Face: conversations, turns, or prompts. They need the package `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import chain, islice
from typing import Any

from atom_server.bench.datasets.sample import DatasetOptions, Sample
from atom_server.bench.datasets.sharegpt import samples_of_turns, turns_of
from atom_server.bench.outcome import BenchError
from atom_server.bench.prompt_tokens import PromptTokens

_OUTPUT_LEN = 256


async def huggingface_samples(options: DatasetOptions, tokens: PromptTokens) -> list[Sample]:
    """The first rows of a split; rows of conversations tell how long their answers are.

    Raises:
        BenchError: `datasets` is missing, or its rows are of no kind that is known.
    """
    rows = iter(_rows(options))
    first = next(rows, None)
    if first is None:
        return []
    entries = chain([first], rows)
    if "conversations" in first:
        return await samples_of_turns(map(turns_of, entries), options, tokens)
    for column, read in (("turns", lambda value: value[0]), ("messages", _first_message), ("prompt", str)):
        if column in first:
            output_len = options.output_len or _OUTPUT_LEN
            texts = [read(entry[column]) for entry in islice(entries, options.num_prompts)]
            return [Sample(str(text), output_len) for text in texts]
    raise BenchError(
        f"{options.path} has the columns {', '.join(first)}; a dataset needs conversations, turns, messages or prompt"
    )


def _rows(options: DatasetOptions) -> Iterable[Mapping[str, Any]]:
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise BenchError("--dataset-name hf needs the package datasets: pip install datasets") from None
    split = options.hf_split or "train"
    return datasets.load_dataset(str(options.file), name=options.hf_subset, split=split, streaming=True)


def _first_message(messages: list[Mapping[str, Any]]) -> str:
    return next(str(message["content"]) for message in messages if message["role"] == "user")
