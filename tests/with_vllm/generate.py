"""Runs in the environment of vLLM: generates greedily for one job after the other and writes the results as JSON.

usage: generate.py JOBS OUTPUT

JOBS is a JSON file with a list of {"model": folder, "llm": keywords of vllm.LLM, "rounds": n, "num_tokens": n,
"logprobs": false, "shown": [[ids, [[seed, height, width], ...]], ...], "of_kimi": false}. The last two are prompts with
pictures, in the place of those that this file makes, and whether they are given as Kimi's models want them. With
"data_parallel_size" in "llm" tokens are all that is found.

For each job, OUTPUT has {"tokens": [round][prompt] -> ids}, with "logprobs" of these tokens likewise where they were
asked for, and how many tokens of the prompt were "cached"; or {"error": text}. Marks around jobs are written to the
log, so that what vLLM said of each can be told apart.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

MARK = "==== job"
DEFAULTS = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 16,
    "enforce_eager": True,
    "seed": 0,
    "skip_tokenizer_init": True,
}

# Tokens, and (seed, height, width) of the pictures that they show.
Shown = list[tuple[list[int], list[tuple[int, int, int]]]]


def prompts(vocab_size: int, longest: int = 200) -> list[list[int]]:
    """16 of 1 to `longest` tokens, the last two of which begin alike."""
    draw = random.Random(0)
    made = [[draw.randrange(3, vocab_size) for _ in range(draw.randrange(1, longest))] for _ in range(15)]
    return [*made, made[-1] + [5, 6, 7]]


def with_pictures(shown: Shown, of_kimi: bool) -> list[dict[str, Any]]:
    """Prompts as vLLM takes them."""
    import numpy as np
    from PIL import Image

    def draw(seed: int, *size: int) -> Any:
        return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))

    made: list[dict[str, Any]] = []
    for ids, pictures in shown:
        drawn = [draw(*one) for one in pictures]
        data = {"vision_chunk": [{"type": "image", "image": one} for one in drawn]} if of_kimi else {"image": drawn}
        made.append({"prompt_token_ids": ids} | ({"multi_modal_data": data} if drawn else {}))
    return made


def run(
    model: str,
    llm: dict[str, Any],
    rounds: int = 1,
    num_tokens: int = 64,
    logprobs: bool = False,
    shown: Shown | None = None,
    of_kimi: bool = False,
) -> dict[str, Any]:
    """What becomes of each of `rounds` batches of the same prompts."""
    from vllm import LLM, SamplingParams

    if llm.get("data_parallel_size", 1) > 1:
        return {"tokens": asyncio.run(run_engines(model, DEFAULTS | llm, rounds, num_tokens))}
    engine = None
    try:
        engine = LLM(model=model, **(DEFAULTS | llm))
        vocab_size = min(engine.llm_engine.model_config.get_vocab_size(), 300)
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, logprobs=0 if logprobs else None
        )
        given = [(ids, []) for ids in prompts(vocab_size)] if shown is None else shown
        batch = with_pictures(given, of_kimi)
        outputs = [engine.generate(batch, params, use_tqdm=False) for _ in range(rounds)]
        found: dict[str, Any] = {"tokens": [[list(entry.outputs[0].token_ids) for entry in made] for made in outputs]}
        found["cached"] = [[entry.num_cached_tokens or 0 for entry in made] for made in outputs]
        if logprobs:
            found["logprobs"] = [[logprobs_of(entry.outputs[0]) for entry in made] for made in outputs]
        return found
    finally:
        if engine is not None:
            engine.llm_engine.engine_core.shutdown()
        _clean_up()


async def run_engines(model: str, llm: dict[str, Any], rounds: int, num_tokens: int) -> list[list[list[int]]]:
    """The tokens of each round, of engines among which vLLM's client shares out the prompts.

    In each round a prompt comes alone first, for which the other engines have nothing to do.
    """
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **llm))
    final = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, output_kind=final)

    async def one(prompt: list[int], name: str) -> list[int]:
        found = [output async for output in engine.generate({"prompt_token_ids": prompt}, params, name)]
        return list(found[-1].outputs[0].token_ids)

    try:
        given, made = prompts(min(engine.model_config.get_vocab_size(), 300)), []
        for index in range(rounds):
            first = await one(given[0], f"{index}-0")
            others = [one(prompt, f"{index}-{number}") for number, prompt in enumerate(given[1:], 1)]
            made.append([first, *await asyncio.gather(*others)])
        return made
    finally:
        engine.shutdown()


def logprobs_of(output: Any) -> list[float]:
    """The log-probabilities of one prompt's tokens, which vLLM gives as a mapping from ids for each."""
    return [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)]


def _clean_up() -> None:
    """An engine in this process leaves its groups and its model behind."""
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    gc.collect()


def main() -> None:
    """See the module's docstring."""
    jobs, output = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    results = []
    for index, job in enumerate(jobs):
        print(f"\n{MARK} {index} begins", file=sys.stderr, flush=True)
        try:
            results.append(run(job.pop("model"), job.pop("llm", {}), **job))
        except Exception as error:
            traceback.print_exc()
            results.append({"error": f"{type(error).__name__}: {error}"})
        sys.stdout.flush()
        print(f"\n{MARK} {index} ends", file=sys.stderr, flush=True)
        output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
