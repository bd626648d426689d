"""GLM-5: GLM-5 team 2026, https://arxiv.org/abs/2602.15763. DeepSeek-V3.2 in other sizes, without groups of experts.

GLM-5.2 has an index in some layers only, which those behind it share: https://arxiv.org/abs/2603.12201.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from atom_models.architectures.deepseek_v32 import DeepseekV32Config, DeepseekV32ForCausalLM
from atom_models.checkpoint import CheckpointError

FULL, SHARED = "full", "shared"
_OF_LETTERS = {"F": FULL, "S": SHARED}


@dataclass(frozen=True, kw_only=True)
class GlmMoeDsaConfig(DeepseekV32Config):
    """Fields of `config.json`. Which layers have an index: `indexer_types`, or `index_topk_pattern`, or each

    `index_topk_freq`-th one, counted from layer ``index_skip_topk_offset - 1`` on, with all those before it.
    """

    # Drafts after the first may share its choice of positions; here each chooses by itself.
    unread: ClassVar[tuple[str, ...]] = ("index_share_for_mtp_iteration",)

    first_k_dense_replace: int = 3
    indexer_rope_interleave: bool = True
    indexer_types: Sequence[str] | None = None
    index_topk_pattern: Sequence[str] | None = None
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 2

    def __post_init__(self) -> None:
        types = self._types
        if len(types) != self.num_hidden_layers or not {FULL, SHARED} >= set(types) or types[:1] == [SHARED]:
            shown = ", ".join(map(str, types))[:80]
            raise CheckpointError(
                f"config.json: indexer_types or index_topk_pattern is {shown}: it must have {FULL} or {SHARED} for "
                f"each of {self.num_hidden_layers} layers, and {FULL} for the first"
            )

    def has_index(self, layer_id: int) -> bool:
        """Layers that predict further tokens have one, and are not in the list."""
        return layer_id >= self.num_hidden_layers or self._types[layer_id] == FULL

    @property
    def _types(self) -> list[str]:
        given = self.indexer_types or self.index_topk_pattern
        if given is not None:
            return [_OF_LETTERS.get(one, one) for one in given]
        period = max(self.index_topk_freq, 1)
        behind = (max(layer - self.index_skip_topk_offset + 1, 0) for layer in range(self.num_hidden_layers))
        return [FULL if distance % period == 0 else SHARED for distance in behind]


class GlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    config_class = GlmMoeDsaConfig
