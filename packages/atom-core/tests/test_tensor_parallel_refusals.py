"""What ranks cannot share, and machines without the devices: refused in one line before a process is started."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atom_core import LLMEngine
from atom_core.config import ConfigError, EngineArgs, resolve_config
from atom_core.executor.factory import make_executor
from atom_core.executor.inline import InlineExecutor
from atom_core.executor.processes.executor import ProcessExecutor
from atom_kernels.platform import Platform, detect_platform
from atom_models import CheckpointError, open_checkpoint
from atom_models.fallback.admission import FallbackRefusedError
from quantized_checkpoints import PUBLISHED, write_quantized
from tiny_architectures import make_tiny


def refusal(folder: Path, num_ranks: int, **settings: object) -> str:
    with pytest.raises((CheckpointError, FallbackRefusedError)) as raised:
        LLMEngine(str(folder), tensor_parallel_size=num_ranks, dtype="float32", num_kv_blocks=16, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("atom_core.executor.processes.executor.RankProcesses", refuse)


def test_kv_heads_that_do_not_come_out_even_are_named(tiny_llama: Path):
    says = refusal(tiny_llama, 3)
    assert "self_attn.qkv_proj: num_key_value_heads is 2, which 3 ranks can neither share nor repeat evenly" in says


def test_heads_that_do_not_come_out_even_are_named(tiny_llama: Path):
    assert "num_attention_heads is 4, which 8 tensor-parallel ranks cannot share evenly" in refusal(tiny_llama, 8)


@pytest.mark.parametrize("family", ["gpt_oss", "minimax_m2", "qwen3_next"])
def test_kv_heads_that_must_come_out_even_are_named(family: str, tmp_path: Path):
    folder = make_tiny(family, tmp_path / "m", num_attention_heads=6, num_key_value_heads=3)
    says = refusal(folder, 2)
    assert "self_attn.qkv_proj: num_key_value_heads is 3, which 2 tensor-parallel ranks cannot share evenly" in says


def test_experts_that_do_not_come_out_even_are_named(tmp_path: Path):
    folder = make_tiny("qwen3_moe", tmp_path / "m", moe_intermediate_size=30)
    assert "30" in refusal(folder, 4)


def test_fewer_experts_than_ranks_that_need_one_are_named(tmp_path: Path):
    folder = make_tiny("qwen3_moe", tmp_path / "m", num_experts=3, num_experts_per_tok=2)
    says = refusal(folder, 4, enable_expert_parallel=True)
    assert re.search(r"mlp.experts: there are 3 experts, and each of 4 tensor-parallel ranks needs one: give a", says)


def test_copies_of_experts_that_do_not_come_out_even_are_named(tmp_path: Path):
    folder = make_tiny("qwen3_moe", tmp_path / "m", num_experts=8)
    says = refusal(folder, 2, enable_expert_parallel=True, num_redundant_experts=3)
    assert "8 experts and 3 further copies (num_redundant_experts) cannot be placed on 2 ranks" in says


@pytest.mark.parametrize(
    ("family", "num_ranks", "why"),
    [
        ("qwen3_moe", 2, None),
        ("qwen3_moe", 1, "one rank has all experts (tensor_parallel_size is 1)"),
        ("llama", 2, "LlamaForCausalLM has no experts"),
    ],
)
def test_whole_experts_that_cannot_be_spread_are_told_in_a_line(family: str, num_ranks: int, why: str, tiny_family):
    args = EngineArgs(model=str(tiny_family(family)), tensor_parallel_size=num_ranks, enable_expert_parallel=True)
    config = resolve_config(args, open_checkpoint(args.model), detect_platform())
    assert config.parallel.enable_expert_parallel == (why is None)
    lines = [line for line in config.choices if line.startswith("enable_expert_parallel")]
    assert lines == ([] if why is None else [f"enable_expert_parallel = off: {why}"])


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("qwen3_next", "linear_attn: linear_num_key_heads is 2, which 4 tensor-parallel ranks cannot share evenly"),
        ("qwen3_5", "linear_attn: linear_num_key_heads is 2, which 4 tensor-parallel ranks cannot share evenly"),
        ("kimi_linear", "linear_attn_config.num_heads is 4, which 8 tensor-parallel ranks cannot share evenly"),
    ],
)
def test_heads_of_delta_nets_that_do_not_come_out_even_are_named(family: str, says: str, tiny_family):
    assert says in refusal(tiny_family(family), int(says.split("which ")[1][0]))


def test_a_cut_through_a_group_whose_size_the_format_fixes_is_named(tmp_path: Path):
    plain = make_tiny("llama", tmp_path / "plain", hidden_size=128, intermediate_size=96)
    folder, _ = write_quantized(tmp_path, plain, PUBLISHED["mxfp4"])
    says = refusal(folder, 2)
    assert re.search(r"mlp.down_proj: mxfp4 has a scale for each 32 inputs: it cannot be cut between them; give", says)


PRODUCER = {"kv_connector": "TcpConnector", "kv_role": "kv_producer"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tensor_parallel_size": 3}, "is 2, and tensor_parallel_size 3: it must divide that"),
        ({"decode_context_parallel_size": 3, "tensor_parallel_size": 3}, "is 3, and a block of 16 tokens (block_size)"),
        ({"batch_invariant": True}, "is 2, and batch_invariant does not go with it: leave out one of them"),
        ({"kv_transfer_config": PRODUCER}, "is 2, and kv_transfer_config does not go with it"),
    ],
)
def test_settings_that_do_not_go_with_a_shared_context_are_named(settings, says, tiny_llama: Path):
    given = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2} | settings
    with pytest.raises(ConfigError, match=re.escape(f"decode_context_parallel_size {says}")):
        resolve_config(EngineArgs(model=str(tiny_llama), **given), open_checkpoint(tiny_llama), detect_platform())


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("llama", "layers.0.self_attn.attn: paged_attention"),
        ("deepseek_v32", "layers.0.self_attn.indexer.choose: lightning_index"),
        ("kimi_linear", "layers.0.self_attn.delta: delta_net"),
    ],
)
def test_layers_that_cannot_share_their_context_are_named(family: str, layer: str, tiny_family):
    says = refusal(tiny_family(family), 2, decode_context_parallel_size=2)
    assert f"{layer} cannot share its context among 2 ranks" in says


def test_layers_of_transformers_are_not_split(tiny_llama: Path):
    assert "they are not split, and 2 ranks are asked for" in refusal(tiny_llama, 2, model_impl="transformers")


def test_more_ranks_than_gpus_are_refused(tiny_llama: Path):
    platform = replace(Platform.nvidia("sm_90"), num_devices=2)
    args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=4)
    with pytest.raises(ConfigError, match="tensor_parallel_size is 4; each rank needs a GPU of its own.*may use 2"):
        resolve_config(args, open_checkpoint(tiny_llama), platform)
    fitting = EngineArgs(model=str(tiny_llama), tensor_parallel_size=2)
    assert resolve_config(fitting, open_checkpoint(tiny_llama), platform).parallel.tensor_parallel_size == 2


def test_other_systems_than_linux_have_one_rank(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2; several ranks need Linux, and this is darwin"):
        resolve_config(args, open_checkpoint(tiny_llama), detect_platform())


@pytest.mark.parametrize(("num_ranks", "given", "expected"), [(1, None, 8), (2, None, 4), (16, None, 1), (2, 1, 1)])
def test_ranks_share_the_cores_unless_threads_are_given(num_ranks, given, expected, tiny_llama, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    platform = replace(detect_platform(), num_cores=8)
    args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=num_ranks, num_threads=given)
    assert resolve_config(args, open_checkpoint(tiny_llama), platform).parallel.num_threads == expected


def test_one_rank_needs_no_process(tiny_llama: Path):
    def executor_of(num_ranks: int) -> type:
        args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=num_ranks)
        return type(make_executor(resolve_config(args, open_checkpoint(tiny_llama), detect_platform())))

    assert (executor_of(1), executor_of(2)) == (InlineExecutor, ProcessExecutor)
