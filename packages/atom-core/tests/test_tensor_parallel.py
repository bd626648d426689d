"""Two ranks in processes of their own give what one gives, whatever is asked for."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.config import EngineArgs
from atom_core.executor.processes.executor import ProcessExecutor
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.messages import StructuredOutputParams
from converted_gguf import write_gguf
from quantized_checkpoints import PUBLISHED, write_quantized
from tiny_architectures import FAMILIES, PAST_EVERY_WINDOW, make_tiny
from tiny_models import make_tiny_llama

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, min_p=0.01, seed=7, max_tokens=12, ignore_eos=True)
# One of each way through attention, and through what ranks share: heads, experts, latents that all of them hold.
KINDS = ["llama", "qwen3_moe", "deepseek_v3"]

# Windows, sinks and biases of experts, norms over all heads, and three ways in which delta nets are stored: other
# families are put together of the same layers.
QUICK = [*KINDS, "gpt_oss", "minimax_m2", "qwen3_next", "qwen3_5", "kimi_linear"]
OTHERS = [name for name in FAMILIES if name not in QUICK]


class SharedRanks(RankProcesses):
    """Processes that stay when an engine lets go of them: one model after the other is loaded into them."""

    def close(self, grace: float = 0.0) -> None: ...

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    processes = SharedRanks(2, device="cpu", num_threads=1)
    yield processes
    processes.end()


def make_engine(folder: Path, ranks: RankProcesses | int, **settings: Any) -> LLMEngine:
    """An engine on ranks that run already, or on so many of its own."""
    size = ranks if isinstance(ranks, int) else len(ranks.pids)
    given = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 16, "num_threads": 1, "seed": 0} | settings
    args = EngineArgs(model=str(folder), tensor_parallel_size=size, **given)
    if isinstance(ranks, int):
        return LLMEngine.from_args(args)
    return LLMEngine.from_args(args, partial(ProcessExecutor, start_ranks=lambda *_, **__: ranks))


def make_prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(3, 384) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts(PAST_EVERY_WINDOW, 1, 9, 33, 16, 40)
PARAMS = [GREEDY, SAMPLED] * 3


def outputs(engine: LLMEngine, prompts: list[list[int]] = PROMPTS, params: Any = PARAMS) -> list[list[int]]:
    found = engine.generate(prompts, params, use_tqdm=False)
    assert [output["error"] for output in found] == [None] * len(found)
    return [output["token_ids"] for output in found]


def assert_ranks_change_no_token(model: Path, ranks: RankProcesses) -> None:
    found = []
    for group in (1, ranks):
        with make_engine(model, group) as engine:
            found.append(outputs(engine))
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def expected(tiny_family: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The tokens of one rank, by family."""
    known: dict[str, list[list[int]]] = {}

    def of(family: str) -> list[list[int]]:
        if family not in known:
            with make_engine(tiny_family(family), 1) as engine:
                known[family] = outputs(engine)
        return known[family]

    return of


@pytest.mark.parametrize("family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_two_ranks_give_the_tokens_of_one(family, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks) as engine:
        assert outputs(engine) == expected(family)


@pytest.mark.parametrize("family", ["qwen3_next", pytest.param("deepseek_v32", marks=pytest.mark.slow)])
def test_drafts_of_prediction_layers_change_no_token_of_two_ranks(family, ranks, tiny_family, expected):
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    with make_engine(tiny_family(family), ranks, speculative_config=speculation) as engine:
        assert outputs(engine) == expected(family)
        assert engine.stats.num_draft_tokens > 40
        again = engine.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output["token_ids"] for output in again] == expected(family)
        assert again[0]["num_cached_tokens"] >= 64


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 7},
        {"num_kv_blocks": 12, "max_model_len": 176, "enable_prefix_caching": False},
        {"async_scheduling": False},
    ],
    ids=["in chunks", "preempted", "without running ahead"],
)
@pytest.mark.parametrize("family", KINDS)
def test_how_steps_are_cut_changes_no_token_of_two_ranks(family, settings, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks, **settings) as engine:
        assert outputs(engine) == expected(family)
        assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in settings)
        assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("family", KINDS)
def test_two_ranks_go_on_from_cached_prefixes(family, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks, enable_prefix_caching=True) as engine:
        assert outputs(engine) == expected(family)
        again = engine.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output["token_ids"] for output in again] == expected(family)
        assert again[0]["num_cached_tokens"] >= PAST_EVERY_WINDOW - 16


@pytest.mark.parametrize("tie", [False, True])
def test_two_ranks_add_each_bias_once_and_share_a_tied_head(tie, ranks, tmp_path):
    folder = make_tiny_llama(tmp_path / "model", tie=tie, attention_bias=True, mlp_bias=True)
    assert_ranks_change_no_token(folder, ranks)


def test_log_probabilities_of_two_ranks_are_those_of_one(ranks, tiny_llama):
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    found = []
    for group in (1, ranks):
        with make_engine(tiny_llama, group) as engine:
            found.append(engine.generate(make_prompts(40, 3), params, use_tqdm=False))
    for one, two in zip(*found, strict=True):
        for kind in ("logprobs", "prompt_logprobs"):
            assert numbers_of(two[kind]) == pytest.approx(numbers_of(one[kind]), abs=1e-4)


def numbers_of(entries: Any) -> list[float]:
    found: list[float] = []
    for entry in entries:
        found += [entry.token_id, entry.logprob]
        for token_id, _, logprob in entry.top:
            found += [token_id, logprob]
    return found


def test_embeddings_of_two_ranks_are_those_of_one(ranks, tiny_llama):
    found = []
    for group in (1, ranks):
        with make_engine(tiny_llama, group, max_num_batched_tokens=16) as engine:
            found.append(engine.embed(make_prompts(40, 3)))
    for one, two in zip(*found, strict=True):
        assert two == pytest.approx(one, abs=1e-5)


def test_two_ranks_follow_a_grammar_and_penalties(ranks, tiny_llama):
    """Log-probabilities tell what tokens alone would not: that both ranks have the same tokens before them."""
    shared = SamplingParams(temperature=0.8, seed=3, max_tokens=30, logprobs=1)
    changes = [
        {"structured_outputs": StructuredOutputParams(regex="[ab]{9}")},
        {"repetition_penalty": 1.5, "logit_bias": {5: 4.0}},
    ]
    params = [msgspec.structs.replace(shared, **change) for change in changes]
    found = []
    for group in (1, ranks):
        with make_engine(tiny_llama, group) as engine:
            found.append(engine.generate(["once", "a b"], params, use_tqdm=False))
    for one, two in zip(*found, strict=True):
        assert two["text"] == one["text"]
        assert numbers_of(two["logprobs"]) == pytest.approx(numbers_of(one["logprobs"]), abs=1e-4)
    assert set(found[1][0]["text"]) <= {"a", "b"}


@pytest.mark.slow  # the first trace of a process takes seconds
def test_each_rank_writes_its_trace(ranks, tiny_llama, tmp_path):
    with make_engine(tiny_llama, ranks, torch_profiler_dir=str(tmp_path)) as engine:
        engine.start_profile()
        outputs(engine, [[5, 6, 7]], GREEDY)
        engine.stop_profile()
    assert sorted(file.parent.name for file in tmp_path.glob("*/*.gz")) == ["rank_0", "rank_1"]


@pytest.mark.parametrize("name", ["fp8 tiles", "int4 packed"])
def test_two_ranks_give_the_tokens_of_one_from_quantized_weights(name, ranks, tmp_path):
    plain = make_tiny_llama(tmp_path / "plain", hidden=256, intermediate=512)
    folder, _ = write_quantized(tmp_path, plain, PUBLISHED[name])
    assert_ranks_change_no_token(folder, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5-text", "kimi_linear"])
def test_two_ranks_share_quantized_delta_nets(family, ranks, tiny_family, tmp_path):
    folder, _ = write_quantized(tmp_path, tiny_family(family), PUBLISHED["fp8 tiles"])
    assert_ranks_change_no_token(folder, ranks)


def test_two_ranks_give_the_tokens_of_one_from_super_blocks_that_they_cut(ranks, tmp_path):
    plain = make_tiny("llama", tmp_path / "model", hidden_size=256, intermediate_size=256)
    file = write_gguf(plain, tmp_path / "m.gguf", quant="Q4_K", others={"attn_v": "Q6_K"})
    assert_ranks_change_no_token(file, ranks)


def test_two_ranks_share_a_vocabulary_that_does_not_come_out_even(ranks, tmp_path):
    folder = make_tiny("qwen3", tmp_path / "m", vocab_size=387)
    assert_ranks_change_no_token(folder, ranks)


def test_ranks_listen_on_the_loopback_interface_alone(ranks):
    """gloo authenticates nobody."""
    for pid in ranks.pids:
        owned = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        listening = []
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                is_bound = fields[3] == "0A" or table.startswith("udp")
                if is_bound and f"socket:[{fields[9]}]" in owned:
                    listening.append(fields[1].partition(":")[0])
        assert set(listening) == {"0100007F"}
        # It is named, since a host's own name may stand for another interface.
        assert b"GLOO_SOCKET_IFNAME=lo" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_ranks_have_no_file_with_a_name(ranks):
    for pid in ranks.pids:
        opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [name for name in opened if name.startswith(tempfile.gettempdir()) and os.path.exists(name)]
        assert [name for name in opened if "memfd:atom-ranks" in name]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["minimax_m2", "deepseek_v2-lite"])
def test_four_ranks_give_the_tokens_of_one(family, tiny_family, expected):
    with make_engine(tiny_family(family), 4) as engine:
        assert outputs(engine) == expected(family)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3])
def test_two_ranks_of_a_compiled_model_give_the_tokens_of_one(level, ranks, tiny_family, expected):
    with make_engine(tiny_family("llama"), ranks, level=level) as engine:
        assert outputs(engine) == expected("llama")


def test_ranks_keep_their_parts_of_blocks_that_left_the_cache(ranks: RankProcesses, tiny_llama: Path, tmp_path: Path):
    draw = random.Random(0)
    first, other = ([draw.randrange(5, 200) for _ in range(140)] for _ in range(2))
    given: dict[str, Any] = {"num_kv_blocks": 12, "max_model_len": 160, "kv_offload_memory": "96KiB"}
    given |= {"kv_offload_folder": str(tmp_path), "kv_offload_disk": "4MiB"}
    with make_engine(tiny_llama, ranks, **given) as engine:
        (before,) = engine.generate([first], GREEDY)
        engine.generate([other], GREEDY)
        (after,) = engine.generate([first], GREEDY)
    assert after["token_ids"] == before["token_ids"]
    assert after["num_cached_tokens"] > 0
    assert len(list(tmp_path.iterdir())) == 2
