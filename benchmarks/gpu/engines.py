"""The engines, each with dummy weights, the same limits and one call to generate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_NUM_SEQS = 256
MAX_BATCHED_TOKENS = 16384
MEMORY_SHARE = 0.85


class Atom:
    """`LLMEngine` in this process."""

    name = "atom"

    def __init__(self, model: Path, *, max_model_len: int, prefix_caching: bool, settings: dict[str, Any]) -> None:
        from atom_core import LLMEngine, __version__

        self.version = __version__
        self._engine = LLMEngine(
            str(model),
            load_dummy=True,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=max_model_len,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=prefix_caching,
            **settings,
        )

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        from atom_core import SamplingParams

        params = [SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True) for count in max_tokens]
        outputs = self._engine.generate(prompts, params, use_tqdm=False)
        _check([len(output["token_ids"]) for output in outputs], max_tokens)


class Vllm:
    """`vllm.LLM` in this process, as it comes: compiled, with full and piecewise graphs."""

    name = "vllm"

    def __init__(self, model: Path, *, max_model_len: int, prefix_caching: bool, settings: dict[str, Any]) -> None:
        import vllm  # pyright: ignore[reportMissingImports]

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=max_model_len,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            gpu_memory_utilization=MEMORY_SHARE,
            enable_prefix_caching=prefix_caching,
        )

    def generate(self, prompts: Sequence[list[int]], max_tokens: Sequence[int], temperature: float) -> None:
        params = [
            self._params(temperature=temperature, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in max_tokens
        ]
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        _check([len(output.outputs[0].token_ids) for output in outputs], max_tokens)


def _check(generated: Sequence[int], wanted: Sequence[int]) -> None:
    if list(generated) != list(wanted):
        raise RuntimeError(f"asked for {sum(wanted)} tokens and got {sum(generated)}: the timing would mean nothing")
