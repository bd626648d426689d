"""What speculation gives vLLM: with drafts or without, where as many drafts are accepted as are right in ours.

vLLM can be told how often a draft is to be accepted (`rejection_sample_method` "synthetic"). Everything is computed as
ever, and which drafts stay is drawn. So its weights may be any, and both engines do the same work for a token.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.engines import MEMORY_SHARE, fill_as_ours
from benchmarks.gpu.protocol import Figure, Sizes
from benchmarks.gpu.speculated_work import (
    ACCEPTANCE,
    MAX_BATCHED_TOKENS,
    NUM_DRAFTS,
    TIMED,
    max_tokens_for,
    rate_of,
    write_draft_config,
)
from benchmarks.gpu.workloads import TEMPERATURE, random_prompt


def peer_figures(model: Path, sizes: Sizes, *, max_model_len: int, has_drafts: bool) -> Iterator[Figure]:
    """Tokens a second for each batch size, in this process, which vLLM has to itself.

    Args:
        model: a folder with a config, which weights and a head of one layer are made for.
    """
    with tempfile.TemporaryDirectory() as folder:
        head = write_draft_config(json.loads((model / "config.json").read_text()), Path(folder) / "head")
        side = VllmSide(
            model,
            head if has_drafts else None,
            max_model_len=max_model_len,
            max_num_seqs=max(sizes.batch_sizes),
        )
        context, way = min(sizes.contexts), "with drafts" if has_drafts else "without drafts"
        for batch_size in sizes.batch_sizes:
            numbers, speeds = random.Random(batch_size), []
            for number in range(sizes.repeats + 1):
                prompts = [random_prompt(numbers, context) for _ in range(batch_size)]
                speed = side.tokens_per_second(prompts, TIMED)
                speeds += [speed] if number else []
            about = {"batch": batch_size, "context": context, "acceptance": ACCEPTANCE, "drafts": NUM_DRAFTS}
            yield Figure(f"speculation, batch {batch_size}: {way}", "tokens/s", speeds, about | {"kind": way})


def unconditional_rates(chance: float, num_drafts: int) -> list[float]:
    """How often each draft is accepted if one is with the probability `chance` where those before it are."""
    return [chance**place for place in range(1, num_drafts + 1)]


class VllmSide:
    """`vllm.LLM` as it comes, with random weights; it drafts with a `head`."""

    def __init__(self, model: Path, head: Path | None, *, max_model_len: int, max_num_seqs: int) -> None:
        import vllm  # pyright: ignore[reportMissingImports]

        self.version = vllm.__version__
        self._sampling_params = vllm.SamplingParams
        drafting = {
            "method": "eagle3",
            "model": str(head),
            "num_speculative_tokens": NUM_DRAFTS,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": unconditional_rates(ACCEPTANCE, NUM_DRAFTS),
        }
        self._llm = vllm.LLM(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=min(MAX_BATCHED_TOKENS, max_model_len),
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=False,
            speculative_config=None if head is None else drafting,
        )
        self._llm.apply_model(fill_as_ours)
        self._num_requests = 0

    def tokens_per_second(self, prompts: Sequence[list[int]], num_tokens: int) -> float:
        """As `Side` measures it."""
        engine, longest = self._llm.llm_engine, max_tokens_for(num_tokens)
        params = self._sampling_params(temperature=TEMPERATURE, max_tokens=longest, ignore_eos=True, detokenize=False)
        names = [f"timed-{self._num_requests + index}" for index in range(len(prompts))]
        self._num_requests += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        counts = dict.fromkeys(names, 0)

        def step() -> None:
            counts.update({output.request_id: len(output.outputs[0].token_ids) for output in engine.step()})

        rate = rate_of(counts, step, num_tokens)
        while engine.has_unfinished_requests():
            engine.step()
        return rate
