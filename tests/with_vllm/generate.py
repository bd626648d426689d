"""Runs in the environment of vLLM: generates greedily, once for each of several batches, and writes the tokens as JSON.

usage: generate.py MODEL OUTPUT 'JSON of {"llm": keywords of vllm.LLM, "rounds": n, "num_tokens": n}'
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def prompts(vocab_size: int) -> list[list[int]]:
    """16 of 1 to 200 tokens, the last two of which begin alike."""
    draw = random.Random(0)
    made = [[draw.randrange(3, vocab_size) for _ in range(draw.randrange(1, 200))] for _ in range(15)]
    return [*made, made[-1] + [5, 6, 7]]


def main() -> None:
    """See the module's docstring."""
    model, output, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    from vllm import LLM, SamplingParams

    keywords = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "enforce_eager": True, "seed": 0}
    llm = LLM(model=model, skip_tokenizer_init=True, **(keywords | settings.get("llm", {})))
    vocab_size = min(llm.llm_engine.model_config.get_vocab_size(), 300)
    params = SamplingParams(temperature=0, max_tokens=settings["num_tokens"], ignore_eos=True, detokenize=False)
    rounds = []
    for _ in range(settings.get("rounds", 1)):
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts(vocab_size)], params, use_tqdm=False)
        rounds.append([list(entry.outputs[0].token_ids) for entry in outputs])
    output.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
