"""Our delta nets behind vLLM's interface: real kernels over its pages of states, steps as vLLM describes them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.mixers import select_mixer
from atom_kernels.protocols import BatchGeometry
from stub_vllm import stub_vllm
from vllm_steps import described

PROBLEM = DeltaNetProblem(num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=12, conv_width=4, dtype="float32")
NUM_PAGES, PADDING, BLOCK = 6, 64, 4


def random_inputs(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, size, generator=draw) for size in (PROBLEM.channels, 4, 4))


def random_weights() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(9)
    return {name: torch.rand(spec.shape, generator=draw) for name, spec in PROBLEM.weights.items()}


def step_of(requests: Sequence[tuple[int, int]], tables: list[list[int]]) -> BatchGeometry:
    """Requests of (tokens in this step, all tokens), with a row of the block table each."""
    lengths = torch.tensor([query for query, _ in requests])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    return BatchGeometry(
        query_start_loc=starts,
        seq_lens=torch.tensor([length for _, length in requests]).int(),
        block_table=torch.tensor(tables).int(),
        slot_mapping=torch.arange(int(starts[-1])),
        num_reqs=len(requests),
        num_tokens=int(starts[-1]),
        num_decodes=0,
        max_query_len=int(lengths.max()),
        max_seq_len=max(length for _, length in requests),
    )


class InVllm:
    """A layer with its pages, whose bytes are at first what no state is."""

    def __init__(self, mode: str) -> None:
        from atom_vllm.mixers.state_layer import StateLayer

        self.layers: dict[str, Any] = {}
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=self.layers),
            cache_config=SimpleNamespace(mamba_cache_mode=mode),
        )
        self.layer = StateLayer(PROBLEM, "layers.0.delta", config)
        self.layer.impl.take_weights(random_weights())
        shapes, dtypes = self.layer.get_state_shape(), self.layer.get_state_dtype()
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in zip(map(torch.Size, shapes), dtypes, strict=True)]
        self.pages = torch.full((NUM_PAGES, 1, 1, sum(sizes) + PADDING), -1, dtype=torch.int8)
        self.layer.bind_kv_cache(self.pages)
        spec = SimpleNamespace(block_size=BLOCK)
        builder = self.layer.get_attn_backend().get_builder_cls()
        self._builder = builder(spec, ["layers.0.delta"], config, torch.device("cpu"))

    def run(self, inputs: tuple[torch.Tensor, ...], geometry: BatchGeometry) -> torch.Tensor:
        metadata = self._builder.build(0, described(geometry))
        out = torch.full((len(inputs[0]), *PROBLEM.out_shape), torch.nan)
        return self.layer.impl.forward(self.layer, *inputs, self.layer.kv_cache, metadata, out)


@pytest.fixture(params=["none", "align"])
def in_vllm(request: pytest.FixtureRequest) -> Any:
    with stub_vllm() as stub:
        stub.own.group = SimpleNamespace(world_size=1, rank_in_group=0)
        yield InVllm(request.param), request.param


def test_requests_go_on_from_their_pages_and_touch_no_other(in_vllm: Any) -> None:
    """Two chunks of two requests, beside one that pads the batch; pages are planned larger than states are."""
    inside, mode = in_vllm
    own, caches = select_mixer(PROBLEM), [torch.zeros(8, *tensor.shape) for tensor in PROBLEM.layout.tensors]
    weights = own.prepare(random_weights())
    for seed, requests in enumerate([((3, 3), (2, 2), (0, 0)), ((1, 4), (2, 4), (0, 0))]):
        inputs = random_inputs(sum(query for query, _ in requests), seed)
        geometry = step_of(requests, [[2], [1], [0]])
        expected = own.runner.forward(
            inputs, tuple(caches), own.build_metadata(geometry), weights=weights, prologue=None
        )
        # In the mode align pages go by tokens: those behind the first are other requests' here.
        tables = [[4, 5], [2, 3], [0, 0]] if mode == "align" else [[4], [2], [0]]
        assert torch.allclose(inside.run(inputs, step_of(requests, tables)), expected, atol=1e-6)
    untouched = inside.pages[[0, 1, 3, 5]]
    assert (untouched == -1).all()
    assert (inside.pages[..., -PADDING:] == -1).all()
    for ours, cache in zip(inside.layer.kv_cache, caches, strict=True):
        assert torch.allclose(ours[[4, 2]], cache[[1, 0]], atol=1e-6)


def test_pages_go_by_tokens_behind_prefixes() -> None:
    with stub_vllm() as stub:
        stub.own.group = SimpleNamespace(world_size=1, rank_in_group=0)
        inside = InVllm("align")
        inside.pages[3] = 0
        inside.run(random_inputs(2, 0), step_of([(2, BLOCK + 2)], [[1, 3]]))
        assert (inside.pages[1] == -1).all()
        assert inside.pages[3].any()


def test_memory_is_measured_without_metadata() -> None:
    with stub_vllm():
        layer = InVllm("none").layer
        output = torch.full((4, *PROBLEM.out_shape), torch.nan)
        assert not layer.impl.forward(layer, *random_inputs(4, 0), (), None, output).any()


def test_a_name_that_vllm_has_already_is_refused() -> None:
    with stub_vllm():
        from atom_vllm.mixers.state_layer import StateLayer

        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={"a": object()}))
        with pytest.raises(ValueError, match="vLLM has a layer a already"):
            StateLayer(PROBLEM, "a", config)
