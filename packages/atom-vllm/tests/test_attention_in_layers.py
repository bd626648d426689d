"""Our attention behind vLLM's interface: real kernels over a cache as vLLM lays it out, a step as vLLM describes it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.attention import AttentionProblem, apply_prologue
from atom_kernels.attention.cases import make_step
from atom_kernels.mixers import CacheFormat, select_mixer
from atom_models import BuildContext
from stub_vllm import GraphSupport, stub_vllm
from vllm_steps import described

REQUESTS = ((1, 40), (1, 7), (5, 30), (33, 33))
PROBLEM = AttentionProblem(
    num_heads=6, num_kv_heads=2, head_dim=32, scale=0.2, dtype="float32", cache=CacheFormat("float32"), block_size=16
)


def pack(keys: torch.Tensor, values: torch.Tensor, *, gap: int = 0) -> torch.Tensor:
    """``[blocks, heads, tokens, keys then values]``; with a gap, blocks lie in pages that are larger."""
    packed = torch.cat((keys, values), dim=-1).transpose(1, 2)
    _, _, tokens, row = packed.shape
    pages = torch.zeros(packed.shape[0], packed[0].numel() + gap)
    return pages.as_strided(packed.shape, (pages.stride(0), tokens * row, row, 1)).copy_(packed)


@pytest.fixture(scope="module")
def step() -> Any:
    return make_step(PROBLEM, REQUESTS, scattered=True, rotary_dim=32)


@pytest.fixture
def expected(step: Any) -> torch.Tensor:
    return step.run_in_place(select_mixer(PROBLEM), tuple(cache.clone() for cache in step.caches))


@pytest.mark.parametrize("gap", [0, 48])
def test_a_layer_attends_in_vllms_cache_wherever_its_pages_lie(step: Any, expected: torch.Tensor, gap: int) -> None:
    with stub_vllm():
        from atom_vllm.mixers.attention import AtomAttention
        from atom_vllm.mixers.metadata import AtomMetadata, geometry_of

        impl = AtomAttention(6, 32, 0.2, 2)
        cache = pack(*step.caches, gap=gap)
        metadata = AtomMetadata(geometry_of(described(step.geometry)))
        q, k = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
        output = torch.full((len(q) + 3, 6 * 32), torch.nan)  # vLLM pads steps
        impl.forward(None, q, k, step.inputs[2], cache, metadata, output)
        assert torch.allclose(output[: len(q)].view_as(expected), expected, atol=1e-5)
        fused = impl.mix(step.inputs, pack(*step.caches, gap=gap), metadata, step.prologue)
        assert torch.allclose(fused, expected, atol=1e-5)


def test_raw_queries_of_traced_models_come_with_positions_and_go_through_the_layer_of_the_model(
    step: Any, expected: torch.Tensor
) -> None:
    with stub_vllm():
        from atom_vllm.mixers.attention import AtomAttention
        from atom_vllm.mixers.metadata import AtomMetadata, geometry_of

        impl, cache = AtomAttention(6, 32, 0.2, 2), pack(*step.caches)
        metadata = AtomMetadata(geometry_of(described(step.geometry)))

        def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            prologue = dataclasses.replace(step.prologue, positions=positions)
            return impl.mix((q, k, v), cache, metadata, prologue).flatten(1)

        impl.owner = SimpleNamespace(mix=mix)
        output, positions = torch.full((len(step.inputs[0]), 6 * 32), torch.nan), step.prologue.positions
        impl.forward(None, *step.inputs, cache, metadata, output, positions)
        assert torch.allclose(output.view_as(expected), expected, atol=1e-5)


def test_memory_is_measured_without_metadata(step: Any) -> None:
    with stub_vllm():
        from atom_vllm.mixers.attention import AtomAttention

        output = torch.full((4, 6 * 32), torch.nan)
        AtomAttention(6, 32, 0.2, 2).forward(None, *step.inputs, torch.empty(0), None, output)
        assert not output.any()


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"alibi_slopes": [0.5]}, "no alibi"),
        ({"attn_type": "encoder"}, "no attention of type encoder"),
        ({"kv_sharing_target_layer_name": "a"}, "no layers that share another's cache"),
    ],
)
def test_a_layer_that_asks_for_more_is_refused_with_a_way_out(refused: dict[str, Any], message: str) -> None:
    with stub_vllm():
        from atom_vllm.mixers.attention import AtomAttention

        with pytest.raises(NotImplementedError, match=message + ": set ATOM_DISABLE_VLLM_PLUGIN_ATTENTION=1"):
            AtomAttention(6, 32, 0.2, 2, **refused)


def test_decodes_in_front_are_counted_on_the_host(step: Any) -> None:
    with stub_vllm():
        from atom_vllm.mixers.metadata import geometry_of

        geometry = geometry_of(described(step.geometry))
        assert (geometry.num_decodes, geometry.num_reqs, geometry.num_tokens) == (2, 4, 40)
        one_each = described(step.geometry)
        one_each.max_query_len, one_each.query_start_loc_cpu = 1, None  # nothing is read where all is known
        assert geometry_of(one_each).num_decodes == 4


@pytest.mark.parametrize(("capturable", "support"), [(True, "UNIFORM_SINGLE_TOKEN_DECODE"), (False, "NEVER")])
def test_whole_graphs_are_offered_where_every_kernel_may_be_captured(capturable: bool, support: str) -> None:
    with stub_vllm():
        from atom_vllm.mixers.kernels import AtomKernels
        from atom_vllm.mixers.metadata import AtomMetadataBuilder

        class Kernels(AtomKernels):
            def plan_for(self, block_size: int) -> Any:
                return SimpleNamespace(capturable=capturable)

        layer = SimpleNamespace(impl=Kernels())
        layers = {"a": layer, "theirs": SimpleNamespace(impl=None)}
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
        found = AtomMetadataBuilder.get_cudagraph_support(config, SimpleNamespace(block_size=16))
        assert found is GraphSupport[support]


def test_a_kind_of_layer_that_vllm_has_no_cache_for_is_refused_by_name() -> None:
    with stub_vllm():
        from atom_vllm.mixers.mixer_host import mixer_host_factory

        make = mixer_host_factory(SimpleNamespace(kv_transfer_config=object()))
        with pytest.raises(ValueError, match="layers.3 is short_conv; vLLM keeps caches for paged_attention"):
            make(SimpleNamespace(name="short_conv"), "layers.3", BuildContext())
