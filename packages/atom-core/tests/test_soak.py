"""A short random run on the CPU, with all that the long one on a GPU has in it."""

from __future__ import annotations

from pathlib import Path

from atom_core import LLMEngine
from soak import MANY_TOKENS, Soak, greedy
from tiny_models import make_tiny_llama

LONGEST = 400


def test_random_requests_lose_no_block_and_get_the_tokens_that_each_gets_alone(tmp_path: Path) -> None:
    folder = str(make_tiny_llama(tmp_path / "llama", max_position=LONGEST + MANY_TOKENS, seed=7))
    settings = {"dtype": "float32", "max_num_batched_tokens": 256, "num_kv_blocks": 60, "num_threads": 1}
    with LLMEngine(folder, **settings) as engine:
        soak = Soak(engine, longest=LONGEST)
        soak.run(80)
        assert (len(soak.aborted) > 0, len(soak.preempted) > 0) == (True, True)
        assert engine.stats.prefix_cache_hits > 0
    with LLMEngine(folder, enable_prefix_caching=False, **settings) as engine:
        for name, wanted in soak.sample(10, with_preempted=True).items():
            [alone] = engine.generate([wanted.prompt], greedy(wanted.num_tokens), use_tqdm=False)
            assert alone["token_ids"] == soak.finished[name]
