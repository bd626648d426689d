"""What is sent, and when: prompts at random or of a dataset, and arrivals all at once or spread at a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atom_server.bench.dataset import Sample

PATHS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "as", "with", "his", "they", "at")


@dataclass(frozen=True)
class Workload:
    """Requests with prompts of random tokens, or of samples.

    Attributes:
        input_len, output_len: tokens of prompt and answer, at most; each is drawn from [range_ratio * len, len].
        prefix_len: tokens that all prompts begin with, on top of `input_len`.
        request_rate: requests a second; infinite sends all at once.
        burstiness: 1 gives Poisson arrivals, less more bursty ones, more a more even flow (a gamma distribution).
        vocab_size: prompts are token ids below this; None makes them of words, about one token each.
        is_chat: prompts are messages.
        samples: prompts of a dataset, in an order that the seed decides, repeated where they are too few; lengths and
            prefix have no effect then.
    """

    num_prompts: int
    input_len: int
    output_len: int
    range_ratio: float = 1.0
    prefix_len: int = 0
    request_rate: float = float("inf")
    burstiness: float = 1.0
    ignore_eos: bool = False
    seed: int = 0
    vocab_size: int | None = None
    is_chat: bool = False
    samples: Sequence[Sample] = ()

    def bodies(self, model: str | None) -> list[dict[str, Any]]:
        """The JSON of each request; the same for the same seed."""
        source = random.Random(self.seed)
        prefix = self._tokens(source, self.prefix_len)
        common = {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        common |= {"model": model} if model else {}
        common |= {"ignore_eos": True} if self.ignore_eos else {}
        if self.samples:
            order = source.sample(self.samples, len(self.samples))
            taken = [order[number % len(order)] for number in range(self.num_prompts)]
            return [common | self._said([sample.prompt]) | {"max_tokens": sample.output_len} for sample in taken]
        bodies = []
        for _ in range(self.num_prompts):
            tokens = prefix + self._tokens(source, self._length(source, self.input_len))
            bodies.append(common | self._said(tokens) | {"max_tokens": self._length(source, self.output_len)})
        return bodies

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each request but the first."""
        source = random.Random(self.seed + 1)
        mean = 0.0 if self.request_rate == float("inf") else 1.0 / self.request_rate
        for _ in range(self.num_prompts - 1):
            yield source.gammavariate(self.burstiness, mean / self.burstiness) if mean else 0.0

    def _said(self, tokens: list[Any]) -> dict[str, Any]:
        if self.is_chat:
            return {"messages": [{"role": "user", "content": " ".join(tokens)}]}
        return {"prompt": " ".join(tokens) if self.samples or self.vocab_size is None else tokens}

    def _tokens(self, source: random.Random, count: int) -> list[Any]:
        if self.vocab_size is None:
            return [source.choice(_WORDS) for _ in range(count)]
        return [source.randrange(self.vocab_size) for _ in range(count)]

    def _length(self, source: random.Random, most: int) -> int:
        return source.randint(max(1, int(most * self.range_ratio)), most)
