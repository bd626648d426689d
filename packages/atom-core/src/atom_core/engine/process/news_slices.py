"""Slices of a step's news: none takes long to decode and to turn into text, whatever was asked for. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from atom_core.messages import EngineOutput, TokenLogprobs

# So many numbers or samples take a millisecond or two.
MAX_NUMBERS = 4096
MAX_OUTPUTS = 32


def slices_of(news: Iterable[EngineOutput]) -> Iterator[list[EngineOutput]]:
    """The same news in the same order, in lists that are short; long prompt log-probabilities come in several news."""
    current: list[EngineOutput] = []
    num_numbers = 0
    for output in news:
        for part in _parts(output):
            weight = _num_numbers(part)
            if current and (num_numbers + weight > MAX_NUMBERS or len(current) >= MAX_OUTPUTS):
                yield current
                current, num_numbers = [], 0
            current.append(part)
            num_numbers += weight
    if current:
        yield current


def _parts(output: EngineOutput) -> Iterator[EngineOutput]:
    """The news, after others that hold the first of many prompt log-probabilities and nothing else."""
    entries = output.prompt_logprobs
    if entries is None or _num_entries(entries) <= MAX_NUMBERS:
        yield output
        return
    length = max(1, MAX_NUMBERS // _num_entries(entries[:1]))
    starts = range(0, len(entries), length)
    for start in starts[:-1]:
        yield EngineOutput(output.request_id, [], prompt_logprobs=entries[start : start + length])
    yield msgspec.structs.replace(output, prompt_logprobs=entries[starts[-1] :])


def _num_numbers(output: EngineOutput) -> int:
    logprobs, prompt_logprobs, embedding = output.logprobs, output.prompt_logprobs, output.embedding
    if logprobs is prompt_logprobs is embedding is None:
        return 0  # most news
    return sum(_num_entries(entries) for entries in (logprobs, prompt_logprobs) if entries) + len(embedding or ())


def _num_entries(entries: list[TokenLogprobs]) -> int:
    """Log-probabilities in the entries, which all have as many."""
    return len(entries) * (1 + len(entries[0].top)) if entries else 0
