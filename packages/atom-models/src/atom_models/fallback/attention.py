"""The attention function that transformers calls, and the paged layer behind each of its attention modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from atom_models.fallback.admission import refuse
from atom_models.layers.mixers.attention import Attention

if TYPE_CHECKING:
    from atom_kernels.attention import AttentionPrologue
    from atom_models.build_context import BuildContext

# The name of our function among transformers' attention implementations.
PAGED = "atom_paged"
# Where an attention module of transformers finds its paged layer.
LAYER = "atom_attention"

# Arguments that say nothing of the numbers: training, and what the model was called with.
_WITHOUT_EFFECT = frozenset(
    ("dropout", "position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "layer_idx")
)
_READ = frozenset(("scaling", "sliding_window", "softcap", "s_aux", "is_causal"))


@dataclass(frozen=True)
class AttentionCall:
    """How a module calls attention.

    Attributes:
        num_heads, num_kv_heads: heads of queries, and of keys and values.
        head_dim: elements of a query and of a key.
        value_dim: elements of a value, at most `head_dim`.
        scale: factor on ``q @ k``; None is ``head_dim ** -0.5``.
        sliding_window: tokens visible to a query including itself; None is all.
        soft_cap: bound of scores; None has none.
        sinks: the name of the module's parameter that has a sink logit for each head; None has none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float | None
    sliding_window: int | None
    soft_cap: float | None
    sinks: str | None


class TakesCalls(Protocol):
    """What stands in for attention while a module is tried."""

    def take(
        self, module: nn.Module, query: Any, key: Any, value: Any, mask: Any, given: dict[str, Any]
    ) -> torch.Tensor:
        """What the module gets from attention."""
        ...


@dataclass
class Recorder:
    """Takes the calls of a dry run, by module, in order of execution."""

    model_type: str
    calls: dict[nn.Module, AttentionCall] = field(default_factory=dict)

    def take(
        self, module: nn.Module, query: Any, key: Any, value: Any, mask: Any, given: dict[str, Any]
    ) -> torch.Tensor:
        name = type(module).__name__
        if module in self.calls:
            raise refuse(self.model_type, f"{name} calls attention twice, and a layer has one cache")
        if mask is not None:
            raise refuse(self.model_type, f"{name} brings a mask of its own, which paged attention does not read")
        unknown = sorted(
            name for name, value in given.items() if value is not None and name not in _READ | _WITHOUT_EFFECT
        )
        if unknown:
            raise refuse(self.model_type, f"{name} calls attention with {', '.join(unknown)}, which is unknown here")
        if given.get("is_causal") is False or getattr(module, "is_causal", True) is False:
            raise refuse(self.model_type, f"{name} is not causal")
        if value.shape[-1] > query.shape[-1] or key.shape[-1] != query.shape[-1] or value.shape[1] != key.shape[1]:
            shapes = ", ".join(str(tuple(one.shape)) for one in (query, key, value))
            raise refuse(self.model_type, f"{name} has queries, keys and values of {shapes}")
        self.calls[module] = AttentionCall(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[-1],
            value_dim=value.shape[-1],
            scale=given.get("scaling"),
            sliding_window=given.get("sliding_window") or None,
            soft_cap=given.get("softcap") or None,
            sinks=self._sinks_of(module, given.get("s_aux")),
        )
        batch, num_heads, num_tokens, _ = query.shape
        return query.new_zeros(batch, num_tokens, num_heads, value.shape[-1])

    def _sinks_of(self, module: nn.Module, sinks: Any) -> str | None:
        if sinks is None:
            return None
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is sinks:
                return name
        raise refuse(self.model_type, f"{type(module).__name__} works its sinks out, and they must be a parameter")


_recorder: ContextVar[TakesCalls | None] = ContextVar("atom_fallback_recorder", default=None)


@contextmanager
def recording(recorder: TakesCalls) -> Iterator[None]:
    """Makes `recorder` take all calls of attention in this thread; nothing is computed."""
    before = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(before)


class PagedAttention(Attention):
    """The paged layer of one attention module: ``forward(q, k, v, positions) -> [T, heads * head_dim]``.

    Queries and keys come normed and rotated. Values that are shorter than keys are cached with zeros behind them.
    """

    def __init__(self, call: AttentionCall, context: BuildContext, *, prefix: str) -> None:
        super().__init__(
            call.num_heads,
            call.num_kv_heads,
            call.head_dim,
            context=context,
            prefix=prefix,
            scale=call.scale,
            sliding_window=call.sliding_window,
            sinks=call.sinks is not None,
            soft_cap=call.soft_cap,
        )
        # The module itself owns the sinks, and hands them on.
        self._slots.clear()
        self.call = call

    def take_parameter(self, name: str, parameter: torch.Tensor) -> None:
        """A parameter of the module was loaded."""
        if name == self.call.sinks:
            sinks = self.problem.weights["sinks"]
            self._host.take_weights({"sinks": parameter.detach().to(sinks.dtype)})

    def attend_raw(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prologue: AttentionPrologue
    ) -> torch.Tensor:
        """``[T, heads * head_dim]`` of each, which `prologue` norms and rotates -> ``[T, heads * head_dim]``."""
        heads = (one.view(one.shape[0], -1, self.call.head_dim) for one in (q, k, v))
        return self._host.mix(tuple(heads), prologue).view(q.shape[0], -1)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """``[1, heads, T, dim]`` of the packed tokens -> ``[1, T, heads, value_dim]``."""
        call, num_tokens = self.call, query.shape[2]
        if call.value_dim < call.head_dim:
            value = nn.functional.pad(value, (0, call.head_dim - call.value_dim))
        rows = [one[0].transpose(0, 1).reshape(num_tokens, -1) for one in (query, key, value)]
        # Positions are for rotation, which is done.
        out = self(*rows, rows[0].new_empty(0, dtype=torch.int64))
        return out.view(1, num_tokens, call.num_heads, call.head_dim)[..., : call.value_dim]


def attend(
    module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any = None, **given: Any
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each attention module."""
    recorder = _recorder.get()
    if recorder is not None:
        return recorder.take(module, query, key, value, attention_mask, given), None
    return getattr(module, LAYER).attend(query, key, value), None


def register() -> None:
    """Makes the function known to transformers; again does no harm."""
    from transformers import AttentionInterface

    # No mask is made for a name that is not among the functions that make masks.
    AttentionInterface.register(PAGED, attend)
