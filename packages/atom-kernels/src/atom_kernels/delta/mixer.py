"""A delta net as a mixer: the short convolution and the gated delta rule over one slot of state a request.

C: channels, W: width of the convolution, H: value heads, G: gates, X: key dim, V: value dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atom_kernels.delta.step_states import StepStates, states_of_step
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES, CacheFormat
from atom_kernels.mixers.requests import Requests, num_rows
from atom_kernels.operator import WeightSpec, Work
from atom_kernels.protocols import CacheLayout, Slots
from atom_kernels.protocols.kv_cache import CacheTensor

if TYPE_CHECKING:
    import torch

    from atom_kernels.delta.contract import GatedDeltaProblem, ShortConvProblem
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


_FLOAT32 = CacheFormat("float32")


@dataclass(frozen=True, kw_only=True)
class DeltaNetProblem:
    """One layer's delta net, as this rank sees it; see `GatedDeltaProblem`.

    Attributes:
        conv_width: tokens that the convolution sees, the current one included.
        dtype: dtype of inputs and outputs, by torch name. The state of the delta rule is float32.
        num_drafts: drafts that a step may verify behind a token: so many more states are kept of a request.
        cache: ignored, since a state has number formats of its own.
    """

    name: ClassVar[str] = "delta_net"

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    dtype: str
    channel_gates: bool = False
    num_drafts: int = 0
    cache: CacheFormat = _FLOAT32

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of queries, of keys, and of values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: those of all `parts`."""
        return sum(self.parts)

    @property
    def block_size(self) -> int:
        """A state counts as one token."""
        return 1

    @property
    def kv_cache_dtype(self) -> str:
        return "float32"

    @property
    def keeps(self) -> Slots:
        return Slots(1 + self.num_drafts)

    @property
    def layout(self) -> CacheLayout:
        """One state: the inputs that the next convolution sees, and what the delta rule remembers."""
        state = (self.num_value_heads, self.key_dim, self.value_dim)
        return CacheLayout(
            "state",
            1,
            (
                CacheTensor("conv", (self.channels, self.conv_width - 1), self.dtype),
                CacheTensor("delta", state, "float32"),
            ),
        )

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.num_value_heads, self.value_dim)

    @property
    def out_dtype(self) -> str:
        return self.dtype

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """`conv` is ``[C, 1, W]``, as convolutions are stored."""
        import torch

        gates = self.num_value_heads * (self.key_dim if self.channel_gates else 1)
        return {
            "conv": WeightSpec((self.channels, 1, self.conv_width), getattr(torch, self.dtype)),
            "a_log": WeightSpec((self.num_value_heads,), torch.float32),
            "dt_bias": WeightSpec((gates,), torch.float32),
        }

    def work(self, requests: Requests) -> Work:
        """Both operators, one after the other; the state of each request is read and written."""
        from atom_kernels.delta.work import conv_work, delta_work

        rows, states = num_rows(requests), 2 * len(requests)
        parts = conv_work(self.conv, rows, states), delta_work(self.rule, rows, states)
        return Work(sum(part.num_bytes for part in parts), sum(part.flops for part in parts))

    @property
    def backends(self) -> tuple[MixerBackend, ...]:
        return (
            MixerBackend(name="triton", create=_ByTriton, supports=_why_not_triton, cache_scales=ALL_SCALES),
            MixerBackend(name="torch", create=_SelectedOperators, cache_scales=ALL_SCALES),
        )

    @property
    def conv(self) -> ShortConvProblem:
        """The operator that runs first."""
        import torch

        from atom_kernels.delta.contract import ShortConvProblem

        return ShortConvProblem(self.channels, self.conv_width, getattr(torch, self.dtype))

    @property
    def rule(self) -> GatedDeltaProblem:
        """The operator that takes what the first has mixed."""
        import torch

        from atom_kernels.delta.contract import GatedDeltaProblem

        heads, sizes = (self.num_key_heads, self.num_value_heads), (self.key_dim, self.value_dim)
        return GatedDeltaProblem(*heads, *sizes, getattr(torch, self.dtype), self.channel_gates)


def _why_not_triton(problem: DeltaNetProblem, platform: Platform) -> str | None:
    from atom_kernels.delta.triton.backend import CONV_BY_TRITON, DELTA_BY_TRITON

    return CONV_BY_TRITON.supports(problem.conv, platform) or DELTA_BY_TRITON.supports(problem.rule, platform)


class _SelectedOperators(MixerRunner):
    """Runs the operators that are selected for this machine, one after the other."""

    # The operators in torch look at lengths on the host.
    capturable = False
    only_backend: ClassVar[str | None] = None

    def __init__(self, problem: DeltaNetProblem, layout: CacheLayout) -> None:
        self._problem = problem

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> Any:
        """Both operators with their weights."""
        from atom_kernels.delta.ops import GATED_DELTA, SHORT_CONV
        from atom_kernels.select import select

        conv = weights["conv"]
        filters = {"weight": conv.squeeze(1).contiguous() if conv is not None else conv}
        short_conv = select(SHORT_CONV, self._problem.conv, only_backend=self.only_backend)
        gated_delta = select(GATED_DELTA, self._problem.rule, only_backend=self.only_backend)
        return short_conv.prepare(filters), gated_delta.prepare({name: weights[name] for name in ("a_log", "dt_bias")})

    def build_metadata(self, geometry: BatchGeometry) -> StepStates:
        """See `states_of_step`."""
        return states_of_step(self._problem.keeps, geometry)

    def forward(
        self, inputs: tuple[torch.Tensor, ...], caches: Caches, metadata: StepStates, *, weights: Any, prologue: Any
    ) -> torch.Tensor:
        """Inputs are qkv ``[T, C]``, and what makes decays and betas, ``[T, G]`` and ``[T, H]``."""
        qkv_TC, a_TG, b_TH = inputs
        conv_states, delta_states = caches
        short_conv, gated_delta = weights
        step = (metadata.slots_S, metadata.kept_slots_SJ, metadata.query_start_loc_S1, metadata.seq_lens_S)
        mixed_TC = qkv_TC.new_empty(qkv_TC.shape)
        short_conv(qkv_TC, mixed_TC, conv_states, *step)
        out_THV = qkv_TC.new_empty((len(qkv_TC), *self._problem.out_shape))
        gated_delta(mixed_TC, a_TG, b_TH, out_THV, delta_states, *step, metadata.max_query_len)
        return out_THV


class _ByTriton(_SelectedOperators):
    """Its kernels find sequences, lengths and slots on the device."""

    capturable = True
    only_backend = "triton"
