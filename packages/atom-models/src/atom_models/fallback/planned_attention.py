"""Attention of transformers' layers, with queries, keys and values as one product, normed and rotated by our kernel.

A module qualifies by what it hands to attention for a few numbers, and by what it makes of the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_kernels.attention import AttentionPrologue
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.linear import LINEAR
from atom_kernels.select import select
from atom_models.fallback.attention import LAYER, PagedAttention, recording
from atom_models.fallback.planned_layer import PlannedLayer, on_rows, product_of, stacked_parts
from atom_models.fallback.probing import SIZE, computes_the_same, rms_norm_of, with_parts
from atom_models.fallback.step_angles import AngleLayout, StepAngles

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_models.fallback.attention import AttentionCall

_RAW, _NORMS, _OUT = ("q_proj", "k_proj", "v_proj"), ("q_norm", "k_norm"), "o_proj"
_ARGUMENTS = ["hidden_states", "position_embeddings", "attention_mask"]
# Rotation is by the angles that come beside them: what positions themselves change shows far behind a context's end.
_POSITIONS = torch.tensor([[0, 7, 10_000_000]])
_TOKENS = 3


@dataclass(frozen=True)
class Preparation:
    """What a module does to raw queries and keys.

    Attributes:
        layout: how its cosines and sines lie.
        interleaved: see `AttentionPrologue`.
        partial: angles may be fewer than the elements of a head, of which the others pass.
        norms: the norms of each head of queries and of keys; () for none.
        eps: added to the mean square in both.
    """

    layout: AngleLayout
    interleaved: bool
    partial: bool
    norms: tuple[Any, ...]
    eps: float

    def prologue(self, rows: torch.Tensor, cos_sin: torch.Tensor) -> AttentionPrologue:
        """It, with the angles of a step, in the form that our kernels take."""
        q_norm, k_norm = self.norms or (None, None)
        return AttentionPrologue(
            rows,
            cos_sin_cache=cos_sin,
            interleaved=self.interleaved,
            q_norm_weight=None if q_norm is None else q_norm.weight,
            k_norm_weight=None if k_norm is None else k_norm.weight,
            norm_eps=self.eps,
        )


def plan_attention(module: nn.Module, platform: Platform) -> Sequence[nn.Module] | None:
    """Makes `module` a product, our attention and its last linear, if that is all that it does.

    Returns:
        The modules that are to keep their own parameters, norms whose weights our kernel reads there; None where
        `module` stays as it is.
    """
    layer = module._modules.get(LAYER)
    raw: list[Any] = [module._modules.get(name) for name in _RAW]
    if not isinstance(layer, PagedAttention) or not all(type(one) is nn.Linear for one in raw):
        return None
    product, preparation = product_of(raw), _preparation(module, layer.call)
    if product is None or preparation is None:
        return None
    sizes, theirs = [one.out_features for one in raw], module.forward

    def run_by(bound: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        parts = on_rows(bound, product.out_features)
        for index, one in enumerate(raw):
            one.forward = lambda x, index=index: parts(x).split(sizes, -1)[index]
        return RawAttention(module, layer, preparation, bound, sizes, theirs).forward

    PlannedLayer(select(LINEAR, product, platform), module, stacked_parts(raw), run_by)
    return preparation.norms


class RawAttention:
    """Runs a module whose queries, keys and values are one product.

    Where the angles of a step lie otherwise than those by which the module was tried, it runs as transformers wrote
    it, and each of the three linears works the product out again.
    """

    def __init__(
        self,
        module: nn.Module,
        layer: PagedAttention,
        preparation: Preparation,
        product: Callable[..., torch.Tensor],
        sizes: list[int],
        theirs: Callable[..., Any],
    ) -> None:
        self._out: Any = module._modules[_OUT]
        self._layer, self._preparation = layer, preparation
        self._product, self._sizes, self._theirs = product, sizes, theirs

    def forward(self, hidden_states: Any, position_embeddings: Any = None, *rest: Any, **given: Any) -> Any:
        prologue = self._prologue(position_embeddings)
        if prologue is None:
            return self._theirs(hidden_states, position_embeddings, *rest, **given)
        q, k, v = self._product(hidden_states.reshape(-1, hidden_states.shape[-1])).split(self._sizes, -1)
        return self._out(self._layer.attend_raw(q, k, v, prologue)[None]), None

    def _prologue(self, position_embeddings: Any) -> AttentionPrologue | None:
        if not isinstance(position_embeddings, StepAngles):
            return None
        table = position_embeddings.tables.get(self._preparation.layout)
        if table is None or not (self._preparation.partial or table.shape[1] == self._layer.call.head_dim):
            return None
        return self._preparation.prologue(position_embeddings.positions, table)


def _preparation(module: nn.Module, call: AttentionCall) -> Preparation | None:
    """What the module does to queries and keys; None if that, or what surrounds it, is more than our kernels do."""
    norms: tuple[Any, ...] = tuple(module._modules[name] for name in _NORMS if name in module._modules)
    own = {name for name, one in module._modules.items() if one is not None and any(True for _ in one.parameters())}
    if module._parameters or len(norms) == 1 or not own <= {*_RAW, _OUT, *_NORMS} or call.value_dim != call.head_dim:
        return None
    if list(inspect.signature(module.forward).parameters)[: len(_ARGUMENTS)] != _ARGUMENTS:
        return None
    # Our kernel knows one eps, and weights as they are.
    found = [rms_norm_of(one) for one in norms] or [(0.0, 0.0)]
    if found[0] is None or found[0][1] or found != [found[0]] * len(found):
        return None
    if any(one.weight.shape != (call.head_dim,) for one in norms):
        return None
    for layout in AngleLayout:
        for interleaved in (False, True):
            tried = Preparation(layout, interleaved, False, norms, eps=found[0][0])
            if _is(module, call, tried, call.head_dim):
                return replace(tried, partial=_is(module, call, tried, call.head_dim // 4 * 2))
    return None


def _is(module: nn.Module, call: AttentionCall, preparation: Preparation, rotary_dim: int) -> bool:
    """Whether a small copy of the module prepares queries and keys so, and does nothing else around attention."""
    heads, dim = (call.num_heads, call.num_kv_heads, call.num_kv_heads), call.head_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        raw = [nn.Linear(SIZE, one * dim) for one in heads]
        out = nn.Linear(heads[0] * dim, SIZE)
        answer = torch.randn(1, _TOKENS, heads[0], dim)
        x, angles = torch.randn(1, _TOKENS, SIZE), torch.rand(1, _TOKENS, rotary_dim // 2)
        weights = [nn.Parameter(0.5 + torch.rand(dim)) for _ in preparation.norms]
    norms = tuple(
        with_parts(norm, parameters={"weight": weight}) for norm, weight in zip(preparation.norms, weights, strict=True)
    )
    parts = dict(zip((*_RAW, _OUT, *_NORMS[: len(norms)]), (*raw, out, *norms), strict=True))
    probe = with_parts(module, modules=parts)
    taken = _Taken(answer)
    cos_sin = (1.5 * angles.cos(), 0.5 * angles.sin())

    def theirs(x: torch.Tensor) -> Sequence[torch.Tensor]:
        given = tuple(map(preparation.layout.twice, cos_sin))
        with recording(taken):
            result = probe(hidden_states=x, position_embeddings=given, attention_mask=None, position_ids=_POSITIONS)[0]
        return (*taken.given, result)

    def ours(x: torch.Tensor) -> Sequence[torch.Tensor]:
        q, k, v = (one(x[0]).view(_TOKENS, -1, dim) for one in raw)
        table = torch.cat(cos_sin, -1)[0]
        q, k = apply_prologue(q, k, replace(preparation, norms=norms).prologue(torch.arange(_TOKENS), table))
        return (*(one.transpose(0, 1)[None] for one in (q, k, v)), out(answer.flatten(2)))

    return computes_the_same(theirs, ours, x)


class _Taken:
    """Takes what a probe hands to attention, and gives it an answer that is known."""

    def __init__(self, answer: torch.Tensor) -> None:
        self._answer = answer
        self.given: tuple[torch.Tensor, ...] = ()

    def take(self, module: nn.Module, query: Any, key: Any, value: Any, mask: Any, given: Any) -> torch.Tensor:
        self.given = (query, key, value)
        return self._answer
