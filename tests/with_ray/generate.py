"""Prints the tokens of an engine as JSON: ``python -m tests.with_ray.generate MODEL SETTINGS``."""

from __future__ import annotations

import json
import sys

from atom_core import LLMEngine, SamplingParams

PROMPTS = [[3 + 7 * at % 300 for at in range(length)] for length in (5, 21, 40)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True)


def main() -> None:
    """Generate greedily and with a seed."""
    settings = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 8, "num_threads": 1, "seed": 0}
    with LLMEngine(sys.argv[1], **settings, **json.loads(sys.argv[2])) as engine:
        outputs = engine.generate(PROMPTS * 2, [GREEDY] * 3 + [SAMPLED] * 3, use_tqdm=False)
    print(json.dumps([output["token_ids"] for output in outputs]))


if __name__ == "__main__":
    main()
