"""Our models over a tensor-parallel group of vLLM's: each rank has its part, and all have the logits of one.

The group is one of threads; whether vLLM's own is like it is for `make test-vllm` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.protocols import BatchGeometry
from atom_models import load_model
from quantized_checkpoints import PUBLISHED, write_quantized
from stub_vllm import StubVllm, stub_vllm
from thread_ranks import Group
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama
from vllm_ranks import NUM_BLOCKS, Coordinator, model_in_vllm

TOKENS = [5, 6, 7, 8, 9, 300, 383, 2, 17]
OTHERS = ("fp8 tiles", "int8 rows")


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
    """What a rank's model makes of `TOKENS`, and the number of its heads."""
    stub.own.group = Coordinator(group, rank)
    model, layers = model_in_vllm(folder, group.size)
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
