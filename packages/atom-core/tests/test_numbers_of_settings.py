"""Every setting of the engine by its numbers: default, bounds and choices, and what follows from it alone."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom_core import EngineArgs
from atom_core.config import ConfigError, options_of, resolve_config
from atom_core.config.devices import CPU, GPU, traits_of
from atom_core.config.kv_events import read_kv_events
from atom_core.config.resolve import default_capture_sizes
from atom_core.config.sections import CompileConfig, EngineConfig, ModelConfig, ParallelConfig, ProfilerConfig
from atom_core.config.speculation import check_num_states, read_speculation
from atom_core.kv_events.config import KVEventsConfig
from atom_core.speculation import SpeculationConfig, SuffixConfig
from atom_kernels.platform import Platform, detect_platform
from atom_models import open_checkpoint

BOOLEANS = (False, True)
# Setting -> default; then of a number its least and most, of others the values that are allowed.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "model": ("smollm2",),
    "revision": (None,),
    "tokenizer": (None,),
    "skip_tokenizer_init": (False, BOOLEANS),
    "trust_remote_code": (False, (False,)),
    "dtype": ("auto", ("auto", "bfloat16", "float16", "float32")),
    "quantization": ("auto", ("auto", "none", "int8", "int4", "fp8", "fp8_block", "mxfp4")),
    "model_impl": ("auto", ("auto", "atom", "transformers")),
    "max_model_len": (None, 1, None),
    "load_dummy": (False, BOOLEANS),
    "seed": (None, 0, 2**63 - 1),
    "num_threads": (None, 1, os.cpu_count()),
    "kv_cache_dtype": ("auto", ("auto", "bf16", "fp8")),
    "block_size": (16, 1, 1024),
    "enable_prefix_caching": (True, BOOLEANS),
    "prefix_hash": ("xxhash64", ("xxhash64", "sha256")),
    "gpu_memory_utilization": (0.9, 0.01, 1.0),
    "kv_cache_memory": (None, 1, None),
    "kv_offload_memory": (None, 1024, None),
    "kv_offload_disk": (None,),
    "strict_memory": (False, BOOLEANS),
    "num_kv_blocks": (None, 1, None),
    "max_num_seqs": (512, 1, 65536),
    "max_num_queued_requests": (None, 0, None),
    "max_num_queued_tokens": (None, 1, None),
    "priority_ageing": (10.0, 0, None),
    "max_request_seconds": (None, 0.001, None),
    "max_request_logprobs": (2**21, 0, None),
    "max_num_batched_tokens": (None, 1, None),
    "scheduler_delay_factor": (0.0, 0, None),
    "step_timeout": (None, 0.1, None),
    "async_scheduling": (True, BOOLEANS),
    "tensor_parallel_size": (1, 1, None),
    "data_parallel_size": (1, 1, os.cpu_count()),
    "pipeline_parallel_size": (1, 1, None),
    "decode_context_parallel_size": (1, 1, None),
    "distributed_executor_backend": ("mp", ("mp",)),
    "port": (8006, 1, 65535),
    "enforce_eager": (False, BOOLEANS),
    "level": (0, (0, 1, 2, 3)),
    "cudagraph_mode": (None, ("none", "piecewise", "full", "full-and-piecewise")),
    "cudagraph_capture_sizes": (None,),
    "warmup": (None, ("none", "background", "full")),
    "batch_invariant": (False, BOOLEANS),
    "method": (None,),
    "draft_model": (None,),
    "num_speculative_tokens": (None, 1, 16),
    "speculative_config": (None,),
    "structured_output_backend": ("auto", ("auto", "xgrammar", "llguidance")),
    "jump_forward": (True, BOOLEANS),
    "torch_profiler_dir": (None,),
    "mark_trace": (False, BOOLEANS),
}
SETTINGS |= dict.fromkeys(("enable_expert_parallel", "enable_dp_attention", "enable_eplb"), (False, BOOLEANS))
SETTINGS |= {"expert_exchange": ("auto", ("auto", "gather", "all-to-all", "mori"))}
SETTINGS |= {"eplb_window_size": (1000, 1, None), "eplb_step_interval": (3000, 1, None), "max_loras": (8, 1, 256)}
SETTINGS |= dict.fromkeys(("kv_events_config", "kv_transfer_config", "lora_modules", "kv_offload_folder"), (None,))
SETTINGS |= dict.fromkeys(("enable_lora", "language_model_only"), (False, BOOLEANS))
SETTINGS |= {"max_lora_rank": (16, 1, 512), "max_num_image_tokens": (None, 1, None)}
SETTINGS |= {"num_redundant_experts": (0, 0, None), "image_cache_memory": (256 << 20, 0, None)}
BOUNDED = [name for name, about in SETTINGS.items() if len(about) == 3]
CHOSEN = [name for name, about in SETTINGS.items() if len(about) == 2]


def args_of(name: str, value: Any) -> EngineArgs:
    beside = {"enable_dp_attention": name in {"num_redundant_experts", "enable_eplb", "expert_exchange"}}
    return EngineArgs(**{**beside, **({"method": "mtp"} if name == "num_speculative_tokens" else {}), name: value})


def test_every_setting_has_its_default():
    defaults = {name: about[0] for name, about in SETTINGS.items()}
    assert {entry.name: entry.default for entry in options_of(EngineArgs)} == asdict(EngineArgs()) == defaults


@pytest.mark.parametrize("name", BOUNDED)
def test_a_number_may_lie_on_its_bounds_and_not_beyond_them(name: str):
    _, least, most = SETTINGS[name]
    for bound, word, beyond in ((least, "least", -1), (most, "most", 1)):
        if bound is not None:
            assert getattr(args_of(name, bound), name) == bound
            step = 1 if isinstance(bound, int) else 0.005
            with pytest.raises(ConfigError, match=rf"^{name} .*(at {word} {re.escape(f'{bound:g}')}$|not supported)"):
                args_of(name, bound + beyond * step)
    if most is None:
        assert getattr(args_of(name, 10**9), name) == 10**9


@pytest.mark.parametrize("name", ["num_threads", "data_parallel_size"])
def test_neither_threads_nor_engines_are_more_than_the_machine_has_cores(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert getattr(EngineArgs(**{name: 16}), name) == 16
    with pytest.raises(ConfigError, match=rf"^{name} is 17, more than this machine has cores: give at most 16$"):
        EngineArgs(**{name: 17})
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # the system does not say: there is one
    with pytest.raises(ConfigError, match=rf"^{name} is 2, .*: give at most 1$"):
        EngineArgs(**{name: 2})


@pytest.mark.parametrize("name", CHOSEN)
def test_a_choice_is_one_of_those_that_are_listed(name: str):
    for value in SETTINGS[name][1]:
        assert getattr(args_of(name, value), name) == value
    with pytest.raises(ConfigError, match=rf"^{name} is '?(oracle|7)'?; (allowed are|it must be True or False)"):
        args_of(name, 7 if name == "level" else "oracle")


def test_batches_that_are_captured_have_one_request_at_least():
    assert EngineArgs(cudagraph_capture_sizes=(4, 1)).cudagraph_capture_sizes == (4, 1)
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes is 0; it must be at least 1"):
        EngineArgs(cudagraph_capture_sizes=(4, 0))


def test_a_block_has_one_token_or_a_multiple_of_16():
    assert [EngineArgs(block_size=size).block_size for size in (1, 16, 32, 48, 1024)] == [1, 16, 32, 48, 1024]
    for size in (2, 8, 15, 24, 33):
        with pytest.raises(ConfigError, match=f"block_size is {size}; it must be 1 or a multiple of 16"):
            EngineArgs(block_size=size)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000),
        ("3K", 3 << 10),
        ("3KB", 3 << 10),
        ("3KiB", 3 << 10),
        ("3m", 3 << 20),
        ("3MiB", 3 << 20),
        ("2.5G", 5 << 29),
        (" 2GiB ", 2 << 30),
        ("1T", 1 << 40),
        ("7B", 7),
        (77, 77),
    ],
)
def test_bytes_are_read_with_any_of_their_units(text: Any, number: int):
    assert EngineArgs(kv_cache_memory=text).kv_cache_memory == number


@pytest.mark.parametrize("text", ["G", "2X", "inf", "nan", "2 G G", ""])
def test_what_is_no_number_of_bytes_is_refused(text: Any):
    with pytest.raises(ConfigError, match=r"kv_cache_memory is .*; it must be bytes, or such as 512MiB or 2GiB"):
        EngineArgs(kv_cache_memory=text)


@pytest.mark.parametrize("given", ["1 2 4", "1,2,4", "[1, 2, 4]", ["1", 2, "4"], (1, 2, 4), ["1,2", "4"]])
def test_whole_numbers_are_read_in_several_spellings(given: Any):
    assert EngineArgs(cudagraph_capture_sizes=given).cudagraph_capture_sizes == (1, 2, 4)
    assert EngineArgs(cudagraph_capture_sizes=8).cudagraph_capture_sizes == (8,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model", "", "text"),
        ("model", 3, "text"),
        ("max_num_seqs", 2.0, "whole number"),
        ("max_num_seqs", "2.0", "whole number"),
        ("max_num_seqs", False, "whole number"),
        ("priority_ageing", True, "finite number"),
        ("priority_ageing", "soon", "finite number"),
        ("priority_ageing", float("inf"), "finite number"),
        ("priority_ageing", [], "finite number"),
        ("jump_forward", 1, "True or False"),
        ("cudagraph_capture_sizes", ["x"], "whole number"),
        ("speculative_config", 3, "object of JSON"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: Any, says: str):
    with pytest.raises(ConfigError, match=rf"^{name} is .*; it must be .*{says}$"):
        EngineArgs(**{name: value})


@pytest.mark.parametrize("name", [name for name, about in SETTINGS.items() if about[0] is not None])
def test_a_setting_with_a_default_cannot_be_nothing(name: str):
    given: dict[str, Any] = {name: None}
    with pytest.raises(ConfigError, match=f"{name} must not be None; the default is"):
        EngineArgs(**given)


def test_every_setting_has_a_flag_in_both_spellings_and_none_is_set_unless_it_is_given():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for name in SETTINGS:
        assert {f"--{name}", "--" + name.replace("_", "-")} <= flags
    assert {"-tp", "-dp", "-pp"} <= flags
    given = vars(parser.parse_args([]))
    assert given == dict.fromkeys(SETTINGS)


def test_a_front_end_can_leave_flags_out():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser(), leave_out=("port", "seed"))
    assert "port" not in vars(parser.parse_args([]))
    args = argparse.Namespace(port=9000, max_num_seqs=3, seed=None)
    assert EngineArgs.from_cli_args(args, leave_out=("port",)) == EngineArgs(max_num_seqs=3)


def test_the_help_of_a_flag_names_its_choices_and_its_default():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    help_of = {action.dest: str(action.help) for action in parser._actions if action.help is not argparse.SUPPRESS}
    assert help_of["level"].endswith("(one of 0, 1, 2, 3; default: 0)")
    assert help_of["max_num_seqs"].endswith("(default: 512)")
    assert help_of["num_threads"].endswith("ranks.")


@pytest.mark.parametrize("name", ["buffer_steps", "hwm"])
def test_counts_of_events_go_from_one_to_ten_million(name: str):
    given = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"}
    for number in (1, 10_000_000):
        assert getattr(read_kv_events(given | {name: number}), name) == number
    for number in (0, 10_000_001):
        with pytest.raises(ConfigError, match=f"kv_events_config has {name} {number}; it must be from 1 to 10000000"):
            read_kv_events(given | {name: number})


# vLLM's name, ours, its default, the least and the most.
SPECULATION = [
    ("ngram", "num_speculative_tokens", "num_tokens", 1, 1, 16),
    ("ngram", "prompt_lookup_min", "prompt_lookup_min", 2, 1, 64),
    ("ngram", "prompt_lookup_max", "prompt_lookup_max", 5, 1, 64),
    ("suffix", "num_speculative_tokens", "num_tokens", 15, 1, 16),
    ("suffix", "suffix_decoding_max_tree_depth", "max_tree_depth", 24, 4, 64),
    ("suffix", "suffix_decoding_max_cached_requests", "max_cached_requests", 10_000, 0, 1_000_000),
    ("suffix", "suffix_decoding_max_spec_factor", "max_spec_factor", 1.0, 0.25, 16.0),
    ("suffix", "suffix_decoding_min_token_prob", "min_token_prob", 0.1, 0.0, 1.0),
]


def speculation_of(**fields: Any) -> SpeculationConfig:
    found = read_speculation(EngineArgs(speculative_config=fields))
    assert found is not None
    return found


@pytest.mark.parametrize(("method", "field", "name", "default", "least", "most"), SPECULATION)
def test_a_number_of_speculation_may_lie_on_its_bounds_and_not_beyond_them(method, field, name, default, least, most):
    def read(**fields: Any) -> Any:
        config = speculation_of(method=method, **fields)
        return getattr(config.suffix if name in SuffixConfig.__struct_fields__ else config, name)

    assert read() == default
    assert (read(**{field: least}), read(**{field: most})) == (least, most)
    for value in (
        least - 0.001 if isinstance(least, float) else least - 1,
        most + (0.1 if most < 64 else 1),
        "1",
        True,
    ):
        with pytest.raises(
            ConfigError, match=f"{field} .*; it must be a .*number from {least} to {most}$".replace(".0", "")
        ):
            read(**{field: value})


@pytest.mark.parametrize(
    ("method", "num_tokens"),
    [("ngram", 1), ("suffix", 15), ("mtp", 1), ("eagle", 1), ("eagle3", 1), ("draft_model", 4)],
)
def test_each_method_guesses_so_many_tokens_unless_others_are_asked_for(method: Any, num_tokens: int):
    model: dict[str, Any] = {"model": "m"} if method in ("eagle", "eagle3", "draft_model") else {}
    config = speculation_of(method=method, **model)
    assert config == SpeculationConfig(method=method, num_tokens=num_tokens, **model)
    assert (config.adaptive, config.quantization) == (True, "auto")
    assert not speculation_of(method=method, adaptive=False, **model).adaptive


def test_equal_bounds_of_a_lookup_can_be_given():
    config = speculation_of(method="ngram", prompt_lookup_min=3, prompt_lookup_max=3)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (3, 3)


def test_one_guess_without_a_method_is_none_and_two_are_refused():
    assert read_speculation(EngineArgs(num_speculative_tokens=1)) is None
    with pytest.raises(ConfigError, match="num_speculative_tokens is 2, and no method guesses any"):
        EngineArgs(num_speculative_tokens=2)


def test_a_model_that_keeps_states_takes_15_drafts():
    check_num_states(15, "Qwen3NextForCausalLM")
    check_num_states(16, "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="is 16; Qwen3NextForCausalLM keeps a state for each draft, 15 at most"):
        check_num_states(16, "Qwen3NextForCausalLM")


def test_a_cpu_and_a_gpu_take_steps_of_other_sizes():
    assert (CPU.token_budget, CPU.has_graphs, CPU.one_rank_each, CPU.overcommits) == (512, False, False, True)
    assert (GPU.token_budget, GPU.has_graphs, GPU.one_rank_each, GPU.overcommits) == (16384, True, True, False)
    assert (CPU.cache_cap, GPU.cache_cap) == (2 << 30, None)
    assert (traits_of("cpu"), traits_of("cuda")) == (CPU, GPU)


def test_decodes_are_captured_in_sizes_that_lie_further_apart_the_larger_they_are():
    assert default_capture_sizes(1) == (1,)
    assert default_capture_sizes(3) == (1, 2, 3)
    assert default_capture_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert default_capture_sizes(512) == (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
    assert default_capture_sizes(513) == default_capture_sizes(9999) == default_capture_sizes(512)


@pytest.fixture
def resolved(tiny_llama: Path):
    """``resolved(platform, **settings)``: the configuration of an engine of a tiny model there."""
    checkpoint = open_checkpoint(tiny_llama)

    def resolve(platform: Platform | None = None, *, rank: int = 0, **settings: Any) -> EngineConfig:
        args = EngineArgs(model=str(tiny_llama), **settings)
        return resolve_config(args, checkpoint, platform or detect_platform(), data_parallel_rank=rank)

    return resolve


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Platform:
    """A machine with 16 cores and four GPUs that need not be there."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    return replace(Platform.nvidia("sm_90"), num_devices=4)


def test_what_is_given_is_taken_as_it_is(resolved, gpus: Platform):
    config = resolved(
        gpus,
        rank=1,
        dtype="float32",
        max_model_len=99,
        quantization="int8",
        model_impl="atom",
        load_dummy=True,
        skip_tokenizer_init=True,
        tokenizer="t",
        seed=0,
        num_threads=3,
        tensor_parallel_size=2,
        data_parallel_size=2,
        block_size=32,
        prefix_hash="sha256",
        gpu_memory_utilization=0.5,
        kv_cache_memory="1M",
        strict_memory=True,
        max_num_seqs=7,
        max_num_batched_tokens=11,
        async_scheduling=False,
        scheduler_delay_factor=0.5,
        priority_ageing=3.0,
        max_request_seconds=2.5,
        kv_events_config={"enable_kv_cache_events": True, "endpoint": "tcp://*:5557"},
        level=2,
        cudagraph_mode="full",
        cudagraph_capture_sizes=(7, 2, 2),
        batch_invariant=True,
        warmup="background",
        structured_output_backend="llguidance",
        jump_forward=False,
        torch_profiler_dir="d",
        mark_trace=True,
    )
    model, cache, scheduler = config.model, config.cache, config.scheduler
    assert (model.dtype, model.max_model_len, model.max_model_len_given, model.quantization) == (
        "float32",
        99,
        True,
        "int8",
    )
    assert (model.model_impl, model.load_dummy, model.skip_tokenizer_init) == ("atom", True, True)
    assert (model.tokenizer, model.seed, model.architecture) == ("t", 0, "LlamaForCausalLM")
    assert (cache.block_size, cache.enable_prefix_caching, cache.prefix_hash) == (32, True, "sha256")
    assert (cache.memory_utilization, cache.memory_bytes, cache.num_blocks) == (0.5, 1 << 20, None)
    assert cache.strict_memory
    assert cache.events == KVEventsConfig(enable_kv_cache_events=True, endpoint="tcp://*:5557")
    assert scheduler.max_request_seconds == 2.5
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens, scheduler.max_model_len) == (7, 11, 99)
    assert (scheduler.async_scheduling, scheduler.scheduler_delay_factor, scheduler.priority_ageing) == (
        False,
        0.5,
        3.0,
    )
    assert config.parallel == ParallelConfig(3, 2, 2, 1)
    compiled = CompileConfig(2, "full", (2, 7), graphs_required=True, batch_invariant=True, warmup="background")
    assert config.compile == compiled
    assert (config.profiler.directory, config.profiler.mark_trace, config.device) == ("d", True, "cuda")
    assert (config.structured_output.backend, config.structured_output.jump_forward) == ("llguidance", False)
    assert config.choices == ()


def test_what_is_open_on_a_gpu_is_chosen_with_a_line(resolved, gpus: Platform, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = resolved(replace(gpus, num_cores=9), max_num_seqs=24, tensor_parallel_size=2)
    assert (config.model.dtype, config.scheduler.max_num_batched_tokens) == ("bfloat16", 16384)
    assert config.compile == CompileConfig(0, "full-and-piecewise", (1, 2, 4, 8, 16, 24))
    assert (config.parallel.num_threads, config.model.max_model_len_given) == (4, False)
    lines = dict(line.split(" = ", 1) for line in config.choices)
    assert lines["num_threads"] == "4: the cores this process may use, shared by 2 ranks"
    assert lines["cudagraph_mode"] == "full-and-piecewise: decode steps of up to 24 requests are captured"
    assert lines["max_num_batched_tokens"] == "16384: large steps keep a GPU busy"
    assert lines["warmup"] == "none: kernels are compiled, and graphs captured, when steps need them"
    assert lines["max_model_len"].endswith("the model's own")


def test_threads_are_the_environments_unless_they_are_given_and_one_at_least(resolved, gpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert resolved(num_threads=2).parallel.num_threads == 2
    config = resolved()
    assert config.parallel.num_threads == 5
    assert "num_threads = 5: OMP_NUM_THREADS" in config.choices
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert resolved(replace(gpus, num_cores=1), tensor_parallel_size=2).parallel.num_threads == 1


def test_graphs_are_refused_where_they_cannot_be_and_left_out_where_they_are_not_wanted(resolved, gpus: Platform):
    for settings in ({"cudagraph_mode": "full"}, {"cudagraph_capture_sizes": (1,)}):
        with pytest.raises(ConfigError, match="are for GPUs, and there is none"):
            resolved(replace(detect_platform(), device="cpu"), **settings)
        with pytest.raises(ConfigError, match="enforce_eager captures no graphs"):
            resolved(gpus, enforce_eager=True, **settings)
    for settings in ({"enforce_eager": True}, {"cudagraph_mode": "none"}):
        assert resolved(gpus, level=1, **settings).compile == CompileConfig(1)
    assert resolved(gpus, max_num_seqs=8, cudagraph_capture_sizes=(8,)).compile.capture_sizes == (8,)
    with pytest.raises(ConfigError, match="go up to 9, and no batch is larger than max_num_seqs = 8"):
        resolved(gpus, max_num_seqs=8, cudagraph_capture_sizes=(9, 1))


def test_each_rank_has_a_gpu_of_its_own(resolved, gpus: Platform):
    assert resolved(gpus, tensor_parallel_size=2, data_parallel_size=2).parallel.num_ranks == 4
    with pytest.raises(ConfigError, match="tensor_parallel_size is 5; each rank needs a GPU of its own, .* may use 4"):
        resolved(gpus, tensor_parallel_size=5)
    for several in ("data_parallel_size", "pipeline_parallel_size"):
        with pytest.raises(ConfigError, match=f"{several} is 3 with tensor_parallel_size 2: 6 ranks; each"):
            resolved(gpus, tensor_parallel_size=2, **{several: 3})
    assert resolved(replace(gpus, num_devices=0)).parallel.num_ranks == 1
    assert resolved(replace(detect_platform(), device="cpu"), tensor_parallel_size=2).parallel.num_ranks == 2


def test_a_context_may_be_just_the_models_own(resolved):
    assert resolved(max_model_len=512).model.max_model_len == 512
    with pytest.raises(ConfigError, match="max_model_len is 513; the model was made for at most 512"):
        resolved(max_model_len=513)


def test_more_drafts_than_a_model_can_keep_states_of_are_refused_before_anything_of_it_is_read():
    checkpoint: Any = SimpleNamespace(architecture="Qwen3NextForCausalLM")
    args = EngineArgs(model="m", method="ngram", num_speculative_tokens=16)
    with pytest.raises(ConfigError, match="Qwen3NextForCausalLM keeps a state for each draft, 15 at most"):
        resolve_config(args, checkpoint, detect_platform())


def test_an_engine_draws_a_seed_unless_one_is_given(resolved):
    drawn = {resolved().model.seed for _ in range(4)}
    assert len(drawn) == 4
    assert all(0 <= seed < 2**63 for seed in drawn)
    assert resolved(seed=7).model.seed == 7


def test_ranks_of_all_engines_are_counted_and_named():
    alone, third, stages = ParallelConfig(2), ParallelConfig(2, 4, 3, 2), ParallelConfig(2, 4, pipeline_parallel_size=3)
    assert (alone.num_ranks, alone.first_device, alone.name_of(0)) == (1, 0, "rank_0")
    assert (third.num_ranks, third.first_device, third.name_of(1)) == (12, 8, "dp2_tp1")
    assert (stages.ranks_of_engine, stages.num_ranks, stages.first_device) == (12, 12, 0)


def test_sections_that_nobody_filled_ask_for_nothing():
    assert CompileConfig() == CompileConfig(0, "none", (), graphs_required=False, batch_invariant=False, warmup="none")
    assert ProfilerConfig() == ProfilerConfig(None, more=False, mark_trace=False)
    model = ModelConfig("n", Path("p"), "a", "float32", 8, False, 9, ())
    assert (model.quantization, model.model_impl, model.load_dummy, model.seed) == ("auto", "auto", False, 0)
    assert (model.skip_tokenizer_init, model.tokenizer) == (False, None)


def test_a_step_samples_a_token_for_each_request_and_each_of_its_drafts(resolved):
    assert resolved(max_num_seqs=5).max_num_samples == 5
    config = resolved(max_num_seqs=5, method="ngram", num_speculative_tokens=3)
    assert config.speculation == SpeculationConfig(num_tokens=3)
    assert config.max_num_samples == config.speculation.max_num_samples(5)
