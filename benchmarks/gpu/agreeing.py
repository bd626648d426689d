"""A model and a draft model that agree on a given share of tokens: dummy weights, a few of which are chosen.

The model draws token 0 with a given probability at each position, and the draft model always guesses it. Nothing in the
engine knows of this, and every weight is read and multiplied as ever.

The first number of each embedding is so large that layers cannot change it. The last norm lets nothing else through,
so that the head reads a 1 and zeros whatever the tokens are. Logits are then the first column of the head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_models.layers.loadable import expected_weights, loadable

# A power of two, which every dtype holds: layers add numbers below 100.
LARGE = 2.0**15
# The logit of token 0, which bfloat16 holds. The others have 0.
LOGIT = 12.75

Change = Callable[[torch.Tensor], None]
"""Changes a tensor of dummy weights in place."""


def temperature_for(share: float, vocab_size: int) -> float:
    """The temperature at which token 0 has the probability `share`."""
    return LOGIT / math.log(share / (1 - share) * (vocab_size - 1))


def load_agreeing(config: EngineConfig, ranks: WorkerRanks = ALONE) -> EngineModel:
    """Dummy weights for `config`, of a model whose head is not its embedding, and for an EAGLE-3 head."""
    loaded = load_engine_model(config, ranks)
    head: Any = loaded.compute_logits
    _change(head.__self__, _OF_MODEL, config.device)
    if loaded.draft is not None:
        draft: Any = loaded.draft.model
        _change(draft, _OF_DRAFT, config.device)
    return loaded


def draft_bytes(folder: Path, num_drafts: int) -> int:
    """Bytes of weights that so many drafts of the head in `folder` read at least."""
    config = json.loads((folder / "config.json").read_text())
    size, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads = config["num_attention_heads"]
    attention = 2 * size * head_dim * (heads + 2 * config["num_key_value_heads"]) + heads * head_dim * size
    layer, head = attention + 3 * inner * size, config["draft_vocab_size"] * size
    return 2 * (3 * size * size + num_drafts * (layer + head))


def _change(model: torch.nn.Module, changes: Mapping[str, Change], device: str) -> None:
    """Load and pack the layers anew whose weights are chosen."""
    generator = torch.Generator(device).manual_seed(0)
    for layer in loadable(model):
        for name, weight in expected_weights(layer).items():
            if name in changes:
                tensor = torch.empty(weight.shape, dtype=weight.dtype, device=device)
                changes[name](tensor.normal_(0.0, 0.02, generator=generator))
                layer.load_shard(name, tensor)
                layer.finish()


def _let_one_through(weight_D: torch.Tensor) -> None:
    """A norm that gives 1 for the large number, whose mean square over all is its square over their number."""
    weight_D.zero_()
    weight_D[0] = 1 / math.sqrt(len(weight_D))


def _first_column(value: float) -> Change:
    def change(weight_VD: torch.Tensor) -> None:
        weight_VD[:, 0] = 0
        weight_VD[0, 0] = value

    return change


def _all_large(weight_VD: torch.Tensor) -> None:
    weight_VD[:, 0] = LARGE


def _pass_first_on(weight: torch.Tensor) -> None:
    """The first number of what the draft model reads is that of the model's first layer output."""
    weight[0] = 0
    weight[0, 0] = 1


_OF_MODEL: Mapping[str, Change] = {
    "model.embed_tokens.weight": _all_large,
    "model.norm.weight": _let_one_through,
    "lm_head.weight": _first_column(LOGIT),
}
_OF_DRAFT: Mapping[str, Change] = {
    "draft.fc.weight": _pass_first_on,
    "draft.norm.weight": _let_one_through,
    "draft.lm_head.weight": _first_column(1.0),
}
