"""Our engine as one side of a comparison: `LLMEngine`, with everything a user of it runs through.

This module is also what runs in the process of an engine that has more settings than `benchmarks.sides` knows.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atom_core import LLMEngine, SamplingParams
from benchmarks import sides
from benchmarks.peers import random_tokens

_BLOCK = 16


class Ours:
    """`LLMEngine` on token ids: scheduler, paged cache, run-ahead, sampler and output processor are all in a step.

    Args:
        in_use: the cache is as large as the requests need, and was written before.
    """

    name = "atom"

    def __init__(
        self,
        path: Path,
        dtype: str,
        *,
        threads: int,
        max_model_len: int,
        max_num_seqs: int,
        with_text: bool = False,
        quantization: str = "none",
        model_impl: str = "auto",
        tensor_parallel_size: int = 1,
        adapters: Mapping[str, str] | None = None,
        max_lora_rank: int = 16,
        load_dummy: bool = False,
        memory_share: float = 0.9,
        in_use: bool = False,
    ) -> None:
        num_kv_blocks = max_num_seqs * (max_model_len // _BLOCK + 1) if in_use else None
        self._engine = LLMEngine(
            str(path),
            dtype=dtype,
            quantization=quantization,
            model_impl=model_impl,
            num_threads=threads,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            skip_tokenizer_init=not with_text,
            tensor_parallel_size=tensor_parallel_size,
            lora_modules=adapters,
            max_loras=max(len(adapters or {}), 1),
            max_lora_rank=max_lora_rank,
            load_dummy=load_dummy,
            gpu_memory_utilization=memory_share,
            num_kv_blocks=num_kv_blocks,
            block_size=_BLOCK,
        )
        self._vocab_size = self._engine.info.vocab_size
        self._max_model_len = max_model_len
        self._random = random.Random(1)
        self._open: list[str] = []
        if in_use:
            self._fill_cache(max_num_seqs, max_model_len - 1)

    def decoder(
        self, batch_size: int, context: int, adapters: Sequence[str | None] | None = None
    ) -> Callable[[], object]:
        """Requests that all decode when this returns, with a step of theirs on its way; each may have an adapter."""
        self._drop()
        counts: dict[str, int] = {}

        def count(output: Any) -> None:
            counts[output.request_id] = output.num_output_tokens

        params = SamplingParams(temperature=0.0, max_tokens=self._max_model_len - context, ignore_eos=True)
        prompts = [random_tokens(self._random, context, self._vocab_size) for _ in range(batch_size)]
        self._open = self._engine.add_request(prompts, params, stream_callback=count, adapter=adapters)
        while len(counts) < batch_size:
            self._engine.step()
        return self._engine.step

    def prefiller(self, num_tokens: int) -> Callable[[], object]:
        """From `add_request` to the first token, of a prompt that the prefix cache has not seen."""
        self._drop()
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

        def prefill() -> list[dict[str, Any]]:
            self._engine.add_request([random_tokens(self._random, num_tokens, self._vocab_size)], params)
            while not (finished := self._engine.step()):
                pass
            return finished

        return prefill

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """Token ids of the most likely continuation."""
        self._drop()
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        return self._engine.generate([token_ids], params, use_tqdm=False)[0]["token_ids"]

    def close(self) -> None:
        """Let go of the model."""
        self._engine.close()

    def _fill_cache(self, num_prompts: int, length: int) -> None:
        """Write all of the cache once: a server in use has, and a machine takes long to give memory that nobody had."""
        prompts = [random_tokens(self._random, length, self._vocab_size) for _ in range(num_prompts)]
        self._engine.generate(prompts, SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)

    def _drop(self) -> None:
        """End the requests of the scenario before."""
        self._engine.abort(self._open)
        self._open = []
        while not self._engine.is_finished():
            self._engine.step()


def main() -> None:
    """Serve one engine over standard input and output; its settings are keywords of `Ours`, in JSON."""
    settings = json.loads(sys.argv[1])
    path = Path(settings.pop("path"))
    sides.serve(lambda: Ours(path, **settings))


if __name__ == "__main__":
    main()
