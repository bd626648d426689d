"""Settings as flags and keywords, and how the open ones are settled."""

from __future__ import annotations

import argparse
import json
import shutil

import pytest
import torch

from atom_core import EngineArgs, LLMEngine
from atom_core.config import ConfigError, options_of, resolve_config
from atom_core.config.speculation import read_speculation
from atom_core.engine.startup import open_model, resolve
from atom_core.speculation import SpeculationConfig, SuffixConfig
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import CACHE_DTYPES
from atom_kernels.rotary import RopeConfig, rope_frequencies
from atom_models import CheckpointError, open_checkpoint
from atom_models.checkpoint.rope_choice import rope_choice
from tiny_models import ROPES, make_tiny_llama


def parse(*arguments: str) -> EngineArgs:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    return EngineArgs.from_cli_args(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--kv_cache_dtype", "fp8"], "kv_cache_dtype", "fp8"),
        (["--kv-cache-dtype", "bf16"], "kv_cache_dtype", "bf16"),
        (["--max-model-len", "77"], "max_model_len", 77),
        (["--max_num_seqs", "3"], "max_num_seqs", 3),
        (["--load_dummy"], "load_dummy", True),
        (["--enable_prefix_caching"], "enable_prefix_caching", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--no-async-scheduling"], "async_scheduling", False),
        (["-tp", "1", "-dp", "1"], "tensor_parallel_size", 1),
        (["--gpu-memory-utilization", "0.5"], "gpu_memory_utilization", 0.5),
        (["--kv-cache-memory", "2GiB"], "kv_cache_memory", 2 << 30),
        (["--kv-cache-memory", "512M"], "kv_cache_memory", 512 << 20),
        (["--torch-profiler-dir", "t"], "torch_profiler_dir", "t"),
        (["--skip-tokenizer-init"], "skip_tokenizer_init", True),
        (["--port", "9000"], "port", 9000),
        (["--level", "0", "--enforce-eager"], "enforce_eager", True),
    ],
    ids=str,
)
def test_flags_are_read_in_kebab_and_in_snake_case(arguments, name, value):
    assert getattr(parse(*arguments), name) == value


def test_a_namespace_may_hold_the_flags_of_others():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--temperature", type=float, default=0.6)
    args = parser.parse_args(["--model", "m", "--temperature", "1"])
    assert EngineArgs.from_cli_args(args) == EngineArgs(model="m")


def test_every_setting_is_documented_and_has_its_default():
    for entry in options_of(EngineArgs):
        assert entry.help.endswith((".", ")."))
        assert getattr(EngineArgs(), entry.name) == entry.default


def read_json(text: str) -> SpeculationConfig:
    speculation = read_speculation(parse("--speculative-config", text))
    assert speculation is not None
    return speculation


def test_speculation_is_off_and_flags_or_vllms_json_turn_it_on():
    assert read_speculation(parse()) is None
    assert read_speculation(parse("--method", "ngram")) == SpeculationConfig(num_tokens=1)
    by_flags = read_speculation(parse("--method", "ngram", "--num-speculative-tokens", "4"))
    assert by_flags == read_json('{"method": "ngram", "num_speculative_tokens": 4}') == SpeculationConfig(num_tokens=4)
    whole = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 7}'
    assert read_json(whole) == SpeculationConfig(num_tokens=4, prompt_lookup_min=3, prompt_lookup_max=7)


def test_suffix_lookup_is_asked_for_by_a_flag_or_in_vllms_spelling():
    assert read_speculation(parse("--method", "suffix")) == SpeculationConfig(method="suffix", num_tokens=15)
    assert read_json('{"method": "suffix", "num_speculative_tokens": 3}') == SpeculationConfig(
        method="suffix", num_tokens=3
    )
    names = ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob")
    fields = {f"suffix_decoding_{name}": value for name, value in zip(names, (30, 7, 2, 0.3), strict=True)}
    expected = SuffixConfig(max_tree_depth=30, max_cached_requests=7, max_spec_factor=2.0, min_token_prob=0.3)
    assert read_json(json.dumps({"method": "suffix", **fields})).suffix == expected


def test_a_model_that_drafts_is_asked_for_by_its_method_and_a_head_by_its_folder():
    by_flags = read_speculation(parse("--method", "mtp", "--num-speculative-tokens", "2"))
    assert by_flags is not None
    assert by_flags == read_json('{"method": "mtp", "num_speculative_tokens": 2}')
    assert by_flags == SpeculationConfig(method="mtp", num_tokens=2)
    head = read_json('{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 3}')
    assert head == SpeculationConfig(method="eagle3", model="some/head", num_tokens=3)
    assert [config.is_by_model for config in (by_flags, head, SpeculationConfig())] == [True, True, False]


def test_a_whole_model_that_drafts_is_asked_for_by_its_folder():
    expected = SpeculationConfig(method="draft_model", model="some/model", num_tokens=4)
    assert read_speculation(parse("--draft-model", "some/model")) == expected
    assert read_speculation(parse("--draft-model", "some/model", "--method", "draft_model")) == expected
    assert read_json('{"method": "draft_model", "model": "some/model"}') == expected
    head = read_speculation(parse("--draft-model", "some/head", "--method", "eagle3"))
    assert head == SpeculationConfig(method="eagle3", model="some/head")
    rounded = read_json('{"method": "draft_model", "model": "m", "quantization": "int8", "num_speculative_tokens": 2}')
    assert (rounded.quantization, rounded.num_tokens) == ("int8", 2)
    asked = [config for config in (expected, head) if config is not None]
    assert [config.is_by_model for config in asked] == [True, True]
    assert [config.keeps_by_next for config in asked] == [False, True]


def test_prediction_layers_that_a_model_does_not_have_are_refused_before_weights_load(tiny_llama):
    args = EngineArgs(model=str(tiny_llama), method="mtp")
    with pytest.raises((ConfigError, CheckpointError), match="mtp") as caught:
        resolve(args, open_model(args))
    assert "\n" not in str(caught.value)


def test_one_bound_of_the_lookup_moves_the_others_default_where_it_has_to():
    for given, expected in (({"max": 1}, (1, 1)), ({"min": 9}, (9, 9)), ({"max": 9}, (2, 9)), ({"min": 1}, (1, 5))):
        fields = {f"prompt_lookup_{name}": number for name, number in given.items()}
        found = read_json(json.dumps({"method": "ngram", **fields}))
        assert (found.prompt_lookup_min, found.prompt_lookup_max) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; it must be at least 1"),
        ({"data_parallel_size": 0}, "data_parallel_size is 0; it must be at least 1"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size is 0; it must be at least 1"),
        (
            {"enable_expert_parallel": True, "data_parallel_size": 2},
            "each of 2 engines .* has one device and all experts: give enable_dp_attention too",
        ),
        ({"trust_remote_code": True}, "runs code of a local folder alone, and smollm2 is none"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        EngineArgs(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_expert_parallel": False}, "enable_eplb is about whole experts on ranks: give enable_expert_parallel"),
        (
            {"enable_expert_parallel": False, "enable_eplb": False, "num_redundant_experts": 2},
            "num_redundant_experts 2 is about whole experts",
        ),
        ({"eplb_step_interval": 999}, r"eplb_window_size is 1000; it must be at most eplb_step_interval \(999\)"),
        ({"level": 3}, "enable_eplb and level 3 do not go together"),
        ({"batch_invariant": True}, "enable_eplb and batch_invariant do not go together"),
    ],
    ids=str,
)
def test_what_moving_experts_does_not_go_with_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        EngineArgs(**{"enable_expert_parallel": True, "enable_eplb": True, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"ray, which is not installed: pip install 'ray>=2.40', on all nodes"),
        (
            {"data_parallel_size": 2},
            "data_parallel_size is 2, and distributed_executor_backend ray does not go with it",
        ),
    ],
)
def test_ray_is_refused_where_it_cannot_be_had(settings, message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message) as caught:
        EngineArgs(distributed_executor_backend="ray", **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int3"}, "dtype is 'int3'; allowed are auto, bfloat16, float16, float32"),
        ({"kv_cache_dtype": "fp4"}, "allowed are auto, bf16, fp8"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": "many"}, "must be a whole number"),
        ({"max_num_seqs": True}, "must be a whole number"),
        ({"gpu_memory_utilization": 1.5}, "at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "finite"),
        ({"kv_cache_memory": "lots"}, "such as 512MiB or 2GiB"),
        ({"block_size": 17}, "1 or a multiple of 16"),
        ({"kv_cache_memory": 1, "num_kv_blocks": 1}, "give one of them"),
        ({"enforce_eager": "yes"}, "True or False"),
        ({"model": None}, "must not be None"),
        ({"port": 70000}, "at most 65535"),
        ({"method": "oracle"}, "method is 'oracle'; allowed are ngram"),
        ({"num_speculative_tokens": 3}, "is 3, and no method guesses any: give method ngram"),
        ({"method": "ngram", "num_speculative_tokens": 17}, "is 17; it must be at most 16"),
        ({"method": "ngram", "speculative_config": {"method": "ngram"}}, "give it alone"),
        ({"speculative_config": "{"}, "speculative_config is not JSON"),
        ({"speculative_config": "[1]"}, "must be an object of JSON"),
        ({"speculative_config": {}}, "the method None; allowed are ngram"),
        ({"speculative_config": {"method": "oracle"}}, "the method 'oracle'; allowed are ngram"),
        ({"speculative_config": {"method": "ngram", "tokens": 3}}, "has 'tokens'; it may have method, model, num_spec"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 17}}, "whole number from 1 to 16"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": True}}, "whole number from 1 to 16"),
        (
            {"speculative_config": {"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}},
            "turn them round",
        ),
        ({"method": "eagle3"}, "method eagle3 needs the folder or name of its head: give draft_model, or"),
        ({"method": "draft_model"}, "method draft_model needs the folder or name of its model: give draft_model, or"),
        ({"speculative_config": {"method": "draft_model"}}, "method draft_model needs the folder or name of its model"),
        ({"method": "ngram", "draft_model": "x"}, "a model beside ngram, which needs none"),
        ({"draft_model": "x", "speculative_config": {"method": "ngram"}}, "give it alone"),
        ({"draft_model": "x", "num_speculative_tokens": 17}, "is 17; it must be at most 16"),
        (
            {"speculative_config": {"method": "eagle", "model": "x", "quantization": "int8"}},
            "has 'quantization', which is for draft_model, beside eagle",
        ),
        (
            {"speculative_config": {"method": "draft_model", "model": "x", "quantization": "int3"}},
            "quantization 'int3'; allowed are auto, none, int8",
        ),
        ({"speculative_config": {"method": "eagle", "model": 3}}, "method eagle needs the folder or name of its head"),
        ({"speculative_config": {"method": "mtp", "model": "x"}}, "a model beside mtp, which needs none"),
        ({"speculative_config": {"method": "mtp", "prompt_lookup_max": 3}}, "'prompt_lookup_max', which is for ngram"),
        (
            {"speculative_config": {"method": "ngram", "suffix_decoding_min_token_prob": 0.1}},
            "has 'suffix_decoding_min_token_prob', which is for suffix, beside ngram: leave it out",
        ),
        (
            {"speculative_config": {"method": "suffix", "prompt_lookup_min": 2}},
            "'prompt_lookup_min', which is for ngram",
        ),
        (
            {"speculative_config": {"method": "suffix", "suffix_decoding_max_spec_factor": 0}},
            "suffix_decoding_max_spec_factor 0; it must be a number from 0.25 to 16",
        ),
        (
            {"speculative_config": {"method": "suffix", "suffix_decoding_min_token_prob": True}},
            "suffix_decoding_min_token_prob True; it must be a number from 0 to 1",
        ),
        (
            {"speculative_config": {"method": "suffix", "suffix_decoding_max_tree_depth": 3}},
            "suffix_decoding_max_tree_depth 3; it must be a whole number from 4 to 64",
        ),
        ({"speculative_config": {"method": "ngram"}, "num_speculative_tokens": 1}, "give it alone"),
        ({"method": "mtp", "num_speculative_tokens": 17}, "is 17; it must be at most 16"),
        ({"speculative_config": {"method": "ngram", "adaptive": 1}}, "adaptive 1; it must be true or false"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_names_what_was_allowed(settings, message):
    with pytest.raises(ConfigError, match=message):
        EngineArgs(**settings)


def test_a_wrong_flag_is_an_error_of_the_command_line(capsys):
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    with pytest.raises(SystemExit):
        parser.parse_args(["--max-num-seqs", "none"])
    assert "must be a whole number" in capsys.readouterr().err


def test_an_unknown_keyword_is_told_the_nearest_known_one(tiny_llama):
    with pytest.raises(TypeError, match="'max_model_length'; did you mean max_model_len"):
        LLMEngine(str(tiny_llama), max_model_length=5)


def test_the_help_page_can_be_printed(capsys):
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.print_help()
    shown = capsys.readouterr().out
    assert "--kv-cache-dtype" in shown
    assert "--kv_cache_dtype" not in shown


def test_open_settings_are_settled_with_a_line_for_each(tiny_llama, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = resolve_config(EngineArgs(model=str(tiny_llama)), open_checkpoint(tiny_llama), detect_platform())
    assert config.model.dtype in ("bfloat16", "float32")
    assert config.scheduler.max_num_batched_tokens == 512
    assert config.model.max_model_len == 512
    assert config.parallel.num_threads == detect_platform().num_cores
    for name in ("dtype", "max_model_len", "max_num_batched_tokens", "num_threads"):
        assert any(line.startswith(f"{name} = ") for line in config.choices)


def test_given_settings_are_taken_without_a_line(tiny_llama):
    args = EngineArgs(dtype="float32", max_model_len=64, max_num_batched_tokens=8, num_threads=1)
    config = resolve_config(args, open_checkpoint(tiny_llama), detect_platform())
    assert (config.model.dtype, config.cache.format.name, config.model.max_model_len) == ("float32", "float32", 64)
    assert config.choices == ()


@pytest.mark.parametrize(
    ("rope", "served", "says"),
    [
        ("longrope", None, "longrope's long factors for requests of every length: max_model_len 512 is above the"),
        ("longrope", 129, "longrope's long factors"),
        ("longrope", 128, "longrope's short factors: max_model_len 128 is within the original 128"),
        ("dynamic", None, "dynamic, not stretched: max_model_len 512 is within the original 512"),
        (dict(ROPES["dynamic"], original_max_position_embeddings=64), 65, "dynamic, stretched for requests of every"),
        ("yarn", None, None),
    ],
)
def test_a_rotation_that_depends_on_the_length_is_told_at_start(tmp_path, rope, served, says):
    path = make_tiny_llama(tmp_path / "m", rope=rope)
    args = EngineArgs(model=str(path), max_model_len=served)
    lines = [line for line in resolve_config(args, open_checkpoint(path), detect_platform()).choices if "rope" in line]
    assert len(lines) == (says is not None)
    assert says is None or says in lines[0]


@pytest.mark.parametrize("served", [96, 128, 129, 512])
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_the_line_says_what_the_table_does(kind, served):
    rope = ROPES[kind] | {"original_max_position_embeddings": 128}
    sizes = {"head_dim": 16, "max_position_embeddings": 512}
    frequencies, within = (
        rope_frequencies(RopeConfig.from_parameters(rope, max_position=length, **sizes))[0] for length in (served, 64)
    )
    line = rope_choice({"rope_parameters": rope}, served)
    assert line is not None
    assert torch.equal(frequencies, within) == ("is within the original" in line)


def test_equal_factors_leave_nothing_to_choose():
    factors = {"short_factor": [1.0], "long_factor": [1.0]}
    assert rope_choice({"rope_parameters": ROPES["longrope"] | factors}, 512) is None


def test_the_words_for_cache_dtypes_are_those_of_load_model():
    [option] = [entry for entry in options_of(EngineArgs) if entry.name == "kv_cache_dtype"]
    assert option.choices == CACHE_DTYPES


def test_a_context_longer_than_the_models_is_refused(tiny_llama):
    with pytest.raises(ConfigError, match="made for at most 512"):
        resolve_config(EngineArgs(max_model_len=513), open_checkpoint(tiny_llama), detect_platform())


def test_an_unsupported_architecture_is_refused_by_name(tiny_llama, tmp_path):
    config = json.loads((tiny_llama / "config.json").read_text()) | {"architectures": ["MartianForCausalLM"]}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_llama / name, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="MartianForCausalLM") as caught:
        LLMEngine(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_model_without_weights_is_refused_in_one_line(tiny_llama, tmp_path):
    for path in tiny_llama.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path / path.name)
    with pytest.raises(ValueError) as caught:
        LLMEngine(str(tmp_path), num_kv_blocks=8)
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_refused_in_one_line(tiny_llama, tmp_path):
    for path in tiny_llama.iterdir():
        shutil.copy(path, tmp_path / path.name)
    (weights,) = tmp_path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=weights.name) as caught:
        LLMEngine(str(tmp_path), num_kv_blocks=8)
    assert "\n" not in str(caught.value)
