"""Our models over a tensor-parallel group of vLLM's: each rank has its part, and all have the logits of one.

The group is one of threads; whether vLLM's own is like it is for `make test-vllm` to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atom_kernels.protocols import BatchGeometry
from atom_models import load_model
from quantized_checkpoints import PUBLISHED, write_quantized
from stub_vllm import StubVllm, stub_vllm
from thread_ranks import Group
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

TOKENS = [5, 6, 7, 8, 9, 300, 383, 2, 17]
OTHERS = ("fp8 tiles", "int8 rows")
BLOCK_SIZE, NUM_BLOCKS = 16, 2


class Coordinator:
    """A rank of vLLM's ``GroupCoordinator``, whose sums are new tensors."""

    def __init__(self, group: Group, rank: int) -> None:
        self.world_size, self.rank_in_group, self._ranks = group.size, rank, group.as_rank(rank)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return self._ranks.all_reduce(input_.clone())

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return self._ranks.all_gather(input_, dim)


def config_of(folder: Path, size: int) -> Any:
    """A ``VllmConfig`` for a rank of `size`."""
    config, layers = json.loads((folder / "config.json").read_text()), {}
    given = config.get("quantization_config")
    hf_config = SimpleNamespace(**config, to_dict=lambda: dict(config))
    method = None if given is None else given["quant_method"]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder), dtype=torch.float32, hf_config=hf_config, max_model_len=64, quantization=method
        ),
        cache_config=SimpleNamespace(
            block_size=BLOCK_SIZE, cache_dtype="auto", num_gpu_blocks=NUM_BLOCKS, enable_prefix_caching=False,
            gpu_memory_utilization=0.5, layers=layers,
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=size, enable_expert_parallel=False),
        compilation_config=SimpleNamespace(static_forward_context=layers, mode=0),
        device_config=SimpleNamespace(device=torch.device("cpu"), device_type="cpu"),
        load_config=SimpleNamespace(load_format="auto"),
        kv_transfer_config=None,
        additional_config=None,
    )  # fmt: skip


def prompt(layers: Any) -> Any:
    """vLLM's forward context of a step with one prompt."""
    from atom_vllm.mixers.metadata import AtomMetadata

    count = len(TOKENS)
    geometry = BatchGeometry(
        query_start_loc=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        block_table=torch.arange(NUM_BLOCKS, dtype=torch.int32)[None],
        slot_mapping=torch.arange(count),
        num_reqs=1,
        num_tokens=count,
        num_decodes=0,
        max_query_len=count,
        max_seq_len=count,
    )
    return SimpleNamespace(attn_metadata=dict.fromkeys(layers, AtomMetadata(geometry)))


def logits_in_vllm(stub: StubVllm, folder: Path, group: Group, rank: int) -> tuple[torch.Tensor, int]:
    """What a rank's model makes of `TOKENS`, and the bytes of its weights."""
    from atom_vllm.models.model_wrapper import ATOMModelBase

    stub.own.group, config = Coordinator(group, rank), config_of(folder, group.size)
    model = ATOMModelBase(vllm_config=config)
    model.load_weights(load_file(folder / "model.safetensors").items())
    layers = config.compilation_config.static_forward_context
    for layer in layers.values():
        impl = layer.impl
        shape = (NUM_BLOCKS, BLOCK_SIZE, impl.head_size)
        if not hasattr(impl, "problem"):
            shape = (NUM_BLOCKS, impl.num_kv_heads, BLOCK_SIZE, 2 * impl.head_size)
        layer.kv_cache = torch.zeros(shape)
    # Steps have memory of their own, which two threads must not share.
    stub.own.step = prompt(layers)
    with torch.inference_mode():
        hidden_states = model.forward(torch.tensor(TOKENS), torch.arange(len(TOKENS)))
        return model.compute_logits(hidden_states), sum(layer.impl.num_heads for layer in layers.values())


def assert_ranks_give_the_logits_of_one(folder: Path, size: int, tolerance: float = 1e-4) -> None:
    [expected] = load_model(folder).logits([TOKENS])
    group = Group(size)
    with stub_vllm() as stub:
        # By itself first: threads must neither import modules nor make operators known to torch side by side.
        alone = logits_in_vllm(stub, folder, Group(1), 0)
        found = group.run(lambda rank: logits_in_vllm(stub, folder, group, rank))
    for logits, _ in (alone, *found):
        assert logits.shape == expected.shape
        assert torch.allclose(logits, expected, atol=tolerance)
    num_heads = load_model(folder).checkpoint.text_config["num_attention_heads"]
    num_layers = load_model(folder).checkpoint.text_config["num_hidden_layers"]
    assert [heads for _, heads in found] == [num_heads * num_layers // size] * size


SLOW = [pytest.param(*one, marks=pytest.mark.slow) for one in (("llama", 4), ("gemma3", 2), ("gpt_oss", 2))]


@pytest.mark.parametrize(("family", "size"), [("llama", 2), ("qwen3_moe", 2), ("deepseek_v3", 2), *SLOW])
def test_ranks_of_a_family_give_the_logits_of_one(family: str, size: int, tiny_family: Callable[[str], Path]) -> None:
    assert_ranks_give_the_logits_of_one(tiny_family(family), size)


def test_ranks_share_a_vocabulary_that_does_not_come_out_even(tmp_path: Path) -> None:
    assert_ranks_give_the_logits_of_one(make_tiny("qwen3", tmp_path / "m", vocab_size=387), 2)


@pytest.mark.parametrize("name", ["int4 packed", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_ranks_share_a_quantized_llama(name: str, tmp_path: Path) -> None:
    plain = make_tiny_llama(tmp_path / "plain", hidden=256, intermediate=512)
    assert_ranks_give_the_logits_of_one(write_quantized(tmp_path, plain, PUBLISHED[name])[0], 2, 2e-2)


@pytest.mark.parametrize("family", ["qwen3_moe", pytest.param("deepseek_v3", marks=pytest.mark.slow)])
def test_ranks_share_a_quantized_mixture(family: str, tmp_path: Path) -> None:
    plain = make_tiny(family, tmp_path / "plain", moe_intermediate_size=256)
    assert_ranks_give_the_logits_of_one(write_quantized(tmp_path, plain, PUBLISHED["fp8 tiles"])[0], 2, 2e-2)
