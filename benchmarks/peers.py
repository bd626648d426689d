"""What a side of a comparison can do, and the engines that ours is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Step = Callable[[], object]


class Side(Protocol):
    """One engine of a comparison."""

    name: str

    def decoder(self, batch_size: int, context: int) -> Step:
        """Fill the caches of `batch_size` requests with `context` tokens; each call decodes one more for each."""
        ...

    def prefiller(self, num_tokens: int) -> Step:
        """Each call computes a fresh prompt of `num_tokens` and its first token."""
        ...

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """The most likely continuation, to show that all sides run the same weights."""
        ...

    def close(self) -> None: ...


class Transformers:
    """`transformers` in eager mode: DynamicCache, SDPA, logits for the last token only, tokens by argmax."""

    name = "transformers"

    def __init__(self, path: Path, dtype: str, *, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        torch_dtype = getattr(torch, dtype)
        if path.suffix == ".gguf":
            from transformers import GgufConfig

            model = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),  # pyright: ignore[reportCallIssue]
            )
            self._model = model.to(torch_dtype)
        else:
            self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch_dtype)
        self._model.eval()
        # glibc hands memory of large tensors back to the system at each free, until it has freed one as large once.
        # With fresh pages in every step a batch of 16 takes 1.5 times as long; the peer is to be seen at its best.
        torch.zeros(30 << 20, dtype=torch.uint8)
        self._vocab_size: int = self._model.config.vocab_size
        self._random = random.Random(0)

    def decoder(self, batch_size: int, context: int) -> Step:
        import torch

        # One prompt is computed and its cache copied: where the values come from does not change a step's time.
        _, cache = self._forward(self._prompt(context), None)
        cache.reorder_cache(torch.zeros(batch_size, dtype=torch.int64))  # the one way to copy that all layers have
        # The new tokens are different ones: equal ones would all be sent to the same few experts.
        tokens = torch.tensor([random_tokens(self._random, 1, self._vocab_size) for _ in range(batch_size)])

        def step() -> torch.Tensor:
            nonlocal tokens
            tokens, _ = self._forward(tokens, cache)
            return tokens

        return step

    def prefiller(self, num_tokens: int) -> Step:
        return lambda: self._forward(self._prompt(num_tokens), None)[0].item()

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        import torch

        tokens, cache = self._forward(torch.tensor([token_ids]), None)
        output = [int(tokens)]
        while len(output) < num_tokens:
            tokens, cache = self._forward(tokens, cache)
            output.append(int(tokens))
        return output

    def close(self) -> None:
        del self._model

    def _prompt(self, num_tokens: int) -> Any:
        import torch

        return torch.tensor([random_tokens(self._random, num_tokens, self._vocab_size)])

    def _forward(self, input_ids: Any, cache: Any) -> tuple[Any, Any]:
        """(next tokens ``[B, 1]``, cache) of one call; `cache` grows in place."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if cache is None else cache
        with torch.no_grad():
            output = self._model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].argmax(-1, keepdim=True), cache


def random_tokens(source: random.Random, num_tokens: int, vocab_size: int) -> list[int]:
    """Token ids of a prompt that no cache has seen; the first ids, often special tokens, are left out."""
    return [source.randrange(min(100, vocab_size // 2), vocab_size) for _ in range(num_tokens)]
