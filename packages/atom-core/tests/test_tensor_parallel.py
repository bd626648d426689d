"""Two ranks in processes of their own give what one gives, whatever is asked for."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom_core import SamplingParams
from atom_core.errors import AdapterError
from atom_core.messages import StructuredOutputParams
from converted_gguf import write_gguf
from quantized_checkpoints import PUBLISHED, write_quantized
from shared_ranks import (
    GREEDY,
    PARAMS,
    PROMPTS,
    SharedRanks,
    assert_ranks_change_no_token,
    make_engine,
    make_prompts,
    numbers_of,
    outputs,
    tokens_of_one_process,
)
from tiny_adapters import make_adapter
from tiny_architectures import FAMILIES, PAST_EVERY_WINDOW, make_tiny
from tiny_models import make_tiny_llama

# One of each way through attention, and through what ranks share: heads, experts, latents that all of them hold.
KINDS = ["llama", "qwen3_moe", "deepseek_v3"]

# Windows, sinks and biases of experts, norms over all heads, and three ways in which delta nets are stored: other
# families are put together of the same layers; test_tensor_parallel_layers.py of atom-models has the logits of each.
QUICK = [*KINDS, "gpt_oss", "minimax_m2", "qwen3_next", "qwen3_5", "kimi_linear"]
OTHERS = ["gemma3", "deepseek_v32"]

# Tiny ones of these have six heads, or two key heads of delta nets.
NOT_BY_FOUR = {"qwen2", "qwen3_next", "qwen3_5", "qwen3_5-text", "qwen3_5_moe", "qwen3_5_moe-text"}
SLOW_BY_FOUR = ["minimax_m2", "deepseek_v2-lite"]
BY_FOUR = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW_BY_FOUR else pytest.mark.by_hand)
    for name in FAMILIES
    if name not in NOT_BY_FOUR
]


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[SharedRanks]:
    processes = SharedRanks(tensor_parallel_size=4)
    yield processes
    processes.end()


@pytest.fixture(scope="module")
def expected(tiny_family: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The tokens of one process, by family."""
    return tokens_of_one_process(tiny_family)


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


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_greedy_requests_alone_give_the_tokens_of_one(family, ranks, tiny_family):
    """Whole steps of them gather the best token of each rank; gemma3 caps logits."""
    found = []
    for group in (None, ranks):
        with make_engine(tiny_family(family), group) as engine:
            found.append(outputs(engine, params=GREEDY))
    assert found[0] == found[1]


def test_greedy_drafts_of_prediction_layers_change_no_token_of_two_ranks(ranks, tiny_family):
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    found = []
    for group, given in ((None, {}), (ranks, {"speculative_config": speculation})):
        with make_engine(tiny_family("deepseek_v3"), group, **given) as engine:
            found.append(outputs(engine, params=GREEDY))
            assert (engine.stats.num_draft_tokens > 40) == bool(given)
    assert found[0] == found[1]


def test_two_ranks_compute_each_request_with_its_adapter_as_one_does(ranks, tiny_llama, tmp_path):
    folders = {str(seed): str(make_adapter(tmp_path / str(seed), tiny_llama, seed=seed, std=0.1)) for seed in (1, 2)}
    names = [None, "1", "2"] * 2
    found = []
    for group in (None, ranks):
        with make_engine(tiny_llama, group, lora_modules=folders) as engine:
            found.append(engine.generate(PROMPTS, PARAMS, use_tqdm=False, adapter=names))
            with pytest.raises(AdapterError, match="is no folder"):
                engine.load_adapter("absent", str(tmp_path / "absent"))
            engine.unload_adapter("1")
            engine.load_adapter("1", folders["2"])
            found.append(engine.generate(PROMPTS, PARAMS, use_tqdm=False, adapter=names))
    answers = [[answer["token_ids"] for answer in each] for each in found]
    assert answers[:2] == answers[2:]
    assert answers[0][1] != answers[1][1]


def test_an_adapter_that_a_rank_cannot_serve_is_refused_and_the_ranks_go_on(ranks, tiny_llama, tiny_llama2, tmp_path):
    other = make_adapter(tmp_path, tiny_llama2)
    with make_engine(tiny_llama, ranks, enable_lora=True) as engine:
        with pytest.raises(AdapterError, match=r"lora_B of .*k_proj has the shape"):
            engine.load_adapter("other", str(other))
        assert len(outputs(engine)) == len(PROMPTS)


WAYS = {
    "in chunks": {"max_num_batched_tokens": 7},
    "preempted": {"num_kv_blocks": 12, "max_model_len": 176, "enable_prefix_caching": False},
    "without running ahead": {"async_scheduling": False},
}
# How steps are cut reaches all ranks by the same messages, and one process is held to every family in every way. So
# each way is tried with latents, which all ranks hold, or with heads, which they share; the other pairs are slow.
PAIRS = [("in chunks", "deepseek_v3"), ("preempted", "deepseek_v3"), ("preempted", "qwen3_moe")]
PAIRS += [("in chunks", "llama"), ("without running ahead", "llama")]
OTHER_PAIRS = [(way, family) for way in WAYS for family in KINDS if (way, family) not in PAIRS]


@pytest.mark.parametrize(
    ("way", "family"), [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHER_PAIRS)]
)
def test_how_steps_are_cut_changes_no_token_of_two_ranks(way, family, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks, **WAYS[way]) as engine:
        assert outputs(engine) == expected(family)
        assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])


BY_CONTEXT = {"at once": {}} | WAYS
SLOW_BY_CONTEXT = [pytest.param(way, marks=pytest.mark.slow) for way in ("in chunks", "without running ahead")]


@pytest.mark.parametrize("way", ["at once", "preempted", *SLOW_BY_CONTEXT])
def test_two_ranks_that_share_a_context_give_the_tokens_of_one(way, ranks, tiny_family, expected):
    with make_engine(tiny_family("deepseek_v3"), ranks, decode_context_parallel_size=2, **BY_CONTEXT[way]) as engine:
        assert outputs(engine) == expected("deepseek_v3")
        assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in BY_CONTEXT[way])
        if way == "at once":
            assert outputs(engine) == expected("deepseek_v3")  # from cached prefixes


@pytest.mark.slow
def test_drafts_change_no_token_of_two_ranks_that_share_a_context(ranks, tiny_family, expected):
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    given = {"decode_context_parallel_size": 2, "speculative_config": speculation}
    with make_engine(tiny_family("deepseek_v3"), ranks, **given) as engine:
        assert outputs(engine) == expected("deepseek_v3")
        assert engine.stats.num_draft_tokens > 40


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_four_ranks_that_share_a_context_by_two_or_by_four_give_the_tokens_of_one(
    size, four_ranks, tiny_family, expected
):
    with make_engine(tiny_family("deepseek_v2-lite"), four_ranks, decode_context_parallel_size=size) as engine:
        assert outputs(engine) == expected("deepseek_v2-lite")


def test_ranks_that_share_a_context_hold_as_many_times_its_tokens(ranks, tiny_family):
    sizes = []
    for size in (1, 2):
        given = {"num_kv_blocks": None, "kv_cache_memory": 1 << 20, "decode_context_parallel_size": size}
        with make_engine(tiny_family("deepseek_v3"), ranks, max_num_seqs=512, **given) as engine:
            sizes.append(engine.info.num_cache_tokens)
    assert sizes[1] in (2 * sizes[0], 2 * sizes[0] + 16)


# As the default model's: the first of two ranks has two KV heads, and the other one.
NINE_HEADS = {"hidden_size": 288, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32}


@pytest.mark.parametrize(
    "way",
    [
        *("preempted", "from cached prefixes"),
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("in chunks", "without running ahead")),
    ],
)
def test_heads_that_do_not_come_out_even_change_no_token(way, ranks, tmp_path):
    folder = make_tiny("llama", tmp_path / "m", **NINE_HEADS)
    with make_engine(folder) as engine:
        expected = outputs(engine)
    with make_engine(folder, ranks, **WAYS.get(way, {})) as engine:
        assert outputs(engine) == expected
        assert engine.stats.num_preemptions > 0 if way == "preempted" else outputs(engine) == expected


def test_heads_that_do_not_come_out_even_are_shared_in_packed_formats_too(ranks, tmp_path):
    plain = make_tiny("llama", tmp_path / "model", **NINE_HEADS)
    assert_ranks_change_no_token(write_gguf(plain, tmp_path / "m.gguf", quant="Q4_1"), ranks)


@pytest.mark.slow
def test_four_ranks_share_heads_that_do_not_come_out_even(four_ranks, tmp_path):
    heads = {"num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 16}
    assert_ranks_change_no_token(make_tiny("qwen3", tmp_path / "m", **heads), four_ranks)


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow), "deepseek_v3"])
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
    for group in (None, ranks):
        with make_engine(tiny_llama, group) as engine:
            found.append(engine.generate(make_prompts(40, 3), params, use_tqdm=False))
    for one, two in zip(*found, strict=True):
        for kind in ("logprobs", "prompt_logprobs"):
            assert numbers_of(two[kind]) == pytest.approx(numbers_of(one[kind]), abs=1e-4)


def test_embeddings_of_two_ranks_are_those_of_one(ranks, tiny_llama):
    found = []
    for group in (None, ranks):
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
    for group in (None, ranks):
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


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_two_ranks_of_whole_experts_give_the_tokens_of_one(family, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks, enable_expert_parallel=True) as engine:
        assert engine.info.enable_expert_parallel
        assert outputs(engine) == expected(family)


BALANCED = {"enable_expert_parallel": True, "num_redundant_experts": 2}
BALANCED |= {"enable_eplb": True, "eplb_window_size": 2, "eplb_step_interval": 3}


@pytest.mark.parametrize("family", ["qwen3_moe", pytest.param("deepseek_v3", marks=pytest.mark.slow)])
def test_experts_that_move_every_three_steps_change_no_token(family, ranks, tiny_family, expected):
    with make_engine(tiny_family(family), ranks, **BALANCED) as engine:
        assert outputs(engine) == expected(family)
        assert engine.stats.num_expert_moves > 2


def test_experts_that_do_not_come_out_even_change_no_token(ranks, tmp_path):
    folder = make_tiny("mixtral", tmp_path / "m", num_local_experts=5)
    assert_ranks_change_no_token(folder, ranks, enable_expert_parallel=True)


def test_quantized_experts_that_cannot_be_cut_change_no_token(ranks, tmp_path):
    plain = make_tiny("qwen3_moe", tmp_path / "plain", moe_intermediate_size=32)
    folder, _ = write_quantized(tmp_path, plain, PUBLISHED["mxfp4"])
    assert_ranks_change_no_token(folder, ranks, enable_expert_parallel=True)


@pytest.mark.slow
def test_drafts_by_prediction_layers_of_whole_experts_change_no_token(ranks, tiny_family, expected):
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    given = {"speculative_config": speculation, "enable_expert_parallel": True}
    with make_engine(tiny_family("qwen3_next"), ranks, **given) as engine:
        assert outputs(engine) == expected("qwen3_next")
        assert engine.stats.num_draft_tokens > 40


@pytest.mark.slow
def test_four_ranks_of_whole_experts_give_the_tokens_of_one(four_ranks, tiny_family, expected):
    with make_engine(tiny_family("minimax_m2"), four_ranks, enable_expert_parallel=True) as engine:
        assert outputs(engine) == expected("minimax_m2")


@pytest.mark.parametrize("family", BY_FOUR)
def test_four_ranks_give_the_tokens_of_one(family, four_ranks, tiny_family, expected):
    with make_engine(tiny_family(family), four_ranks) as engine:
        assert outputs(engine) == expected(family)


@pytest.mark.slow
def test_four_ranks_share_greedy_requests_over_a_vocabulary_that_does_not_come_out_even(four_ranks, tmp_path):
    folder, found = make_tiny("qwen3", tmp_path / "m", vocab_size=389), []
    for group in (None, four_ranks):
        with make_engine(folder, group) as engine:
            found.append(outputs(engine, params=GREEDY))
    assert found[0] == found[1]


@pytest.mark.by_hand
def test_four_ranks_share_delta_nets(four_ranks, tmp_path):
    folder = make_tiny("qwen3_next", tmp_path / "m", linear_num_key_heads=4, linear_num_value_heads=8)
    assert_ranks_change_no_token(folder, four_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3])
def test_two_ranks_of_a_compiled_model_give_the_tokens_of_one(level, ranks, tiny_family, expected):
    with make_engine(tiny_family("llama"), ranks, level=level) as engine:
        assert outputs(engine) == expected("llama")


def test_ranks_keep_their_parts_of_blocks_that_left_the_cache(ranks: SharedRanks, tiny_llama: Path, tmp_path: Path):
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
