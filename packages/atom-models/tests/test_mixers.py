"""The seam of layers with a cache: a third kind of mixer, made here, runs wherever attention does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from atom_kernels.mixers import MixerBackend, MixerRunner, UnsupportedMixerError, select_mixer
from atom_kernels.mixers.cache_format import CacheFormat
from atom_kernels.operator import WeightError, WeightSpec
from atom_kernels.protocols import BatchGeometry, CacheLayout, CacheTensor, Pages
from atom_models import BuildContext, mixer_layers
from atom_models.forward_context import ForwardContext, set_forward_context
from atom_models.layers import Mixer
from atom_models.paged_run import PagedRun, SequenceStep


class SumRunner(MixerRunner):
    """Adds to each token, times the gain, the tokens before it."""

    def __init__(self, problem: SumProblem, layout: CacheLayout) -> None:
        self.problem = problem

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry

    def forward(self, inputs: Any, caches: Any, metadata: Any, *, weights: Any, prologue: Any) -> torch.Tensor:
        (x_TD,), (cache_BSD,) = inputs, caches
        cached_SD, out_TD = cache_BSD.flatten(0, 1), torch.zeros_like(x_TD)
        cached_SD[metadata.slot_mapping] = x_TD
        starts = metadata.query_start_loc.tolist()
        for request, length in enumerate(metadata.seq_lens.tolist()):
            size = self.problem.block_size
            slots = [int(metadata.block_table[request, p // size]) * size + p % size for p in range(length)]
            sums_LD = cached_SD[slots].cumsum(0) * weights
            out_TD[starts[request] : starts[request + 1]] = sums_LD[starts[request] - starts[request + 1] :]
        return out_TD


PLAIN_CACHE = CacheFormat("float32")
REASONS = {"native": "cannot add", "torch": None}


@dataclass(frozen=True)
class SumProblem:
    """Prefix sums of vectors."""

    hidden_size: int
    block_size: int
    dtype: str = "float32"
    cache: CacheFormat = PLAIN_CACHE
    sliding_window: int | None = None
    name: ClassVar[str] = "prefix_sum"

    @property
    def kv_cache_dtype(self) -> str:
        return self.cache.dtype

    @property
    def keeps(self) -> Pages:
        return Pages()

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    @property
    def out_dtype(self) -> str:
        return self.dtype

    @property
    def layout(self) -> CacheLayout:
        return CacheLayout("rows", self.block_size, (CacheTensor("x", (self.block_size, self.hidden_size), "float32"),))

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        return {"gain": WeightSpec((self.hidden_size,), torch.float32)}

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        return tuple(
            MixerBackend(name=name, supports=lambda problem, platform, why=why: why, create=SumRunner)
            for name, why in REASONS.items()
        )


class PrefixSum(Mixer):
    def mix(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._host.mix(inputs, None)


class Model(torch.nn.Module):
    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            PrefixSum(SumProblem(4, context.block_size), prefix=f"layers.{i}.sum", context=context) for i in range(2)
        )
        for layer in self.layers:
            layer._host.take_weights({"gain": torch.tensor([1.0, 2.0, 0.0, -1.0])})  # type: ignore[operator, union-attr]

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden_states = input_ids.unsqueeze(1).float().expand(-1, 4).contiguous()
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


@pytest.fixture
def model() -> Model:
    return Model(BuildContext(block_size=4))


def by_hand(tokens: list[int]) -> torch.Tensor:
    gain = torch.tensor([1.0, 2.0, 0.0, -1.0])
    return (torch.tensor(tokens).float().unsqueeze(1).cumsum(0) * gain).cumsum(0) * gain


def run_in_chunks(run: PagedRun, tokens: list[int]) -> torch.Tensor:
    chunks, cached = [], 0
    for length in (5, 1, 3):
        step = SequenceStep(tokens[cached : cached + length], cached, [2, 0, 1])
        chunks.append(run.step([step])[0])
        cached += length
    return torch.cat(chunks)


def test_a_third_kind_of_mixer_runs_over_a_cache_of_its_own(model: Model) -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    assert torch.equal(run_in_chunks(PagedRun(model, 3), tokens), by_hand(tokens))


def test_a_compiled_model_calls_each_mixer_by_its_name(model: Model) -> None:
    called: list[Any] = []

    def note(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        called.extend(node.args[1] for node in graph.graph.nodes if "atom_models.mix" in str(node.target))
        return graph.forward

    torch.compiler.reset()
    run, tokens = PagedRun(model, 3), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    run.model = torch.compile(model, fullgraph=True, backend=note, dynamic=True)
    assert torch.equal(run_in_chunks(run, tokens), by_hand(tokens))
    assert set(called) == {"layers.0.sum", "layers.1.sum"} == set(mixer_layers(model))


def test_two_models_whose_layers_have_the_same_names_do_not_meet() -> None:
    models = [Model(BuildContext(block_size=4)) for _ in range(2)]
    models[1].layers[0]._host.take_weights({"gain": torch.zeros(4)})  # type: ignore[operator, union-attr]
    torch.compiler.reset()
    runs = [PagedRun(model, 3) for model in models]
    for run in runs:
        run.model = torch.compile(run.model, fullgraph=True, backend="eager")
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    assert torch.equal(run_in_chunks(runs[0], tokens), by_hand(tokens))
    assert not run_in_chunks(runs[1], tokens).any()


def test_a_compiled_model_without_its_mixers_in_the_context_is_told_what_to_give(model: Model) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with (
        set_forward_context(ForwardContext({}, {})),
        pytest.raises(RuntimeError, match=r"no layer layers\.0\.sum.*mixers="),
    ):
        compiled(torch.tensor([1]), torch.tensor([0]))


def test_the_plan_says_who_was_passed_over_and_why() -> None:
    plan = select_mixer(SumProblem(4, 4))
    assert (plan.backend, plan.reasons) == ("torch", (("native", "cannot add"),))
    assert not plan.capturable
    assert plan.captures_prompts
    with pytest.raises(UnsupportedMixerError, match="native: cannot add"):
        select_mixer(SumProblem(4, 4), only_backend="native")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "prefix_sum needs the weight gain"),
        ({"gain": torch.ones(5)}, r"gain is \[5\].*calls for \[4\]"),
        ({"gain": torch.ones(4).double()}, r"float64.*calls for \[4\] torch.float32"),
        ({"gain": torch.ones(4), "bias": torch.ones(4)}, "takes the weights .*'gain'.*, not bias"),
    ],
)
def test_weights_that_the_problem_does_not_have_are_refused(weights: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(WeightError, match=message):
        select_mixer(SumProblem(4, 4)).prepare(weights)


def test_strides_that_a_backend_cannot_read_are_a_reason() -> None:
    problem = SumProblem(4, 4)
    (rows,) = problem.layout.tensors
    apart = CacheLayout("apart", 4, (CacheTensor("x", rows.shape, "float32", (32, 8, 1)),))
    with pytest.raises(UnsupportedMixerError, match="torch: reads contiguous blocks only"):
        select_mixer(problem, offered=[apart])
