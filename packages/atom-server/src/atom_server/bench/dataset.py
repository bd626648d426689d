"""Prompts of a file: conversations of ShareGPT, or lines with a prompt each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_server.bench.client import BenchError, Client

# Tokens of a prompt and of its answer, as vLLM's benchmark takes them.
_FEWEST, _MOST_OF_PROMPT, _MOST = 4, 1024, 2048


@dataclass(frozen=True)
class Sample:
    """A prompt and how many tokens to ask for."""

    prompt: str
    output_len: int


async def samples_of(client: Client, name: str, path: Path, num_prompts: int, output_len: int | None) -> list[Sample]:
    """The samples of a dataset, at most so many.

    Args:
        name: "sharegpt", a JSON list of conversations, of which the first two turns count; or "custom", a line of JSON
            with a "prompt", and maybe "output_tokens", for each.
        output_len: asked of every sample; None asks for as many tokens as the answer of the dataset has, which the
            server counts, and leaves out what is very short or very long.

    Raises:
        BenchError: the file is of another form, or nothing is left of it.
    """
    try:
        pairs = _conversations(path) if name == "sharegpt" else _lines(path)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"{path} is no dataset of the kind {name!r}: {type(error).__name__}: {error}") from None
    samples: list[Sample] = []
    for prompt, answer in pairs:
        if len(samples) == num_prompts:
            break
        wanted = output_len or (answer if isinstance(answer, int) else await _length(client, prompt, answer))
        samples += [Sample(prompt, wanted)] if wanted else []
    if not samples:
        raise BenchError(f"{path} has no prompts that can be sent")
    return samples


async def _length(client: Client, prompt: str, answer: str) -> int:
    """Tokens of the answer; 0 for a pair that no benchmark takes."""
    asked, told = [await _count(client, text) for text in (prompt, answer)]
    return told if min(asked, told) >= _FEWEST and asked <= _MOST_OF_PROMPT and asked + told <= _MOST else 0


async def _count(client: Client, text: str) -> int:
    return int((await client.ask("POST", "/tokenize", {"prompt": text}))["count"])


def _conversations(path: Path) -> list[tuple[str, str]]:
    turns = [_turns(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    return [(asked, told) for asked, told, *_ in (texts for texts in turns if len(texts) > 1)]


def _turns(entry: Mapping[str, Any]) -> Sequence[str]:
    return [str(turn["value"]) for turn in entry.get("conversations") or ()]


def _lines(path: Path) -> list[tuple[str, int]]:
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(str(entry["prompt"]), int(entry.get("output_tokens") or 0)) for entry in entries]
