"""The MLP without a gate: one linear up, an activation, one linear down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_models.layers.activation import UngatedActivation
from atom_models.layers.layer import Layer
from atom_models.layers.linear import ColumnParallelLinear, RowParallelLinear
from atom_models.layers.norms.residual import Normed, Term

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class UngatedMLP(Layer):
    """``down(act(up(x)))`` of ``[T, hidden_size]``.

    Args:
        hidden_act: the activation's Hugging Face name.
        up, down: what the checkpoint calls the two linears (Phi: "fc1", "fc2").
        bias: both linears have one.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        context: BuildContext,
        prefix: str,
        up: str = "up_proj",
        down: str = "down_proj",
        bias: bool,
    ) -> None:
        super().__init__()
        self.up_proj = ColumnParallelLinear(hidden_size, intermediate_size, context, prefix=f"{prefix}.{up}", bias=bias)
        self.max_normed_rows, self.row_rounding = self.up_proj.max_normed_rows, self.up_proj.row_rounding
        self.act = UngatedActivation(hidden_act, self.up_proj.out_features, context)
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, context, prefix=f"{prefix}.{down}", bias=bias
        )

    def forward(self, hidden_states: Normed) -> Term:
        return self.down_proj(self.act(self.up_proj(hidden_states)))
