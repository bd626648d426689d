"""`StoredHead`: which parts of an EAGLE or EAGLE-3 head a checkpoint stores, and the tokens that it drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_models.checkpoint.errors import CheckpointError
from atom_models.weights.safetensors_source import SafetensorsSource, open_safetensors, read_headers

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.checkpoint import Checkpoint
    from atom_models.drafting.eagle_config import EagleConfig

_EMBEDDING, _HEAD, _TARGET_IDS = "draft.embed_tokens.weight", "draft.lm_head.weight", "draft.d2t"
# It marks the target's tokens that can be drafted: for training.
_DRAFTED = "draft.t2d"
_ROWS_AT_ONCE = 8192


def own_name(stored: str) -> str | None:
    """A tensor's name in the draft model, which is none of the target's; None where it is no weight.

    Publishers put ``model.`` before names or not, and call the first layer ``midlayer`` or ``layers.0``.
    """
    name = stored.removeprefix("model.")
    name = f"draft.layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else f"draft.{name}"
    return None if name in (_TARGET_IDS, _DRAFTED) else name


@dataclass(frozen=True)
class StoredHead:
    """What a checkpoint has beside the layers.

    Attributes:
        has_embedding: a table other than the target's.
        has_head: a head of its own.
        fc_bias: `fc` has a bias.
        target_ids: int64 ``[draft vocabulary]``, the target's id of each; None where the vocabularies are one.
    """

    has_embedding: bool
    has_head: bool
    fc_bias: bool
    target_ids: torch.Tensor | None


def read_stored_head(
    checkpoint: Checkpoint, config: EagleConfig, context: BuildContext, *, target: Checkpoint
) -> StoredHead:
    """What the files hold, and what the config calls for where a folder has no weights.

    Args:
        target: whose embedding may be the same.

    Raises:
        CheckpointError: tokens are drafted that the target does not have, or nothing says which.
    """
    is_reduced, has_other_size = config.num_drafted != config.vocab_size, config.hidden_size != config.target_size
    if read_headers(checkpoint.path) is None:
        ids = torch.arange(config.num_drafted, device=context.device) if is_reduced else None
        return StoredHead(has_other_size, is_reduced or has_other_size, fc_bias=False, target_ids=ids)
    source = open_safetensors(checkpoint.path)
    stored = {f"draft.{name.removeprefix('model.')}": name for name in source.names()}
    ids = None
    if _TARGET_IDS in stored:
        ids = _target_ids(_read(source, stored[_TARGET_IDS]), checkpoint, config).to(context.device)
    elif is_reduced:
        raise CheckpointError(
            f"{checkpoint.path} drafts {config.num_drafted} of {config.vocab_size} tokens and lacks the tensor d2t, "
            "which says those"
        )
    # What is needed and not there is missed when the names are checked.
    has_embedding = has_other_size
    if _EMBEDDING in stored and not has_other_size:
        has_embedding = not _is_copy(_read(source, stored[_EMBEDDING]), target, context.dtype)
    has_head = _HEAD in stored or is_reduced or has_other_size
    return StoredHead(has_embedding, has_head, "draft.fc.bias" in stored, ids)


def _target_ids(offsets: torch.Tensor, checkpoint: Checkpoint, config: EagleConfig) -> torch.Tensor:
    """The target's id of each draft id d: ``d + d2t[d]``."""
    if offsets.shape != (config.num_drafted,) or offsets.is_floating_point():
        kind = str(offsets.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{checkpoint.path}: d2t is {kind} {list(offsets.shape)}, and must be int64 [{config.num_drafted}]: one "
            "for each token of the draft's vocabulary"
        )
    ids = torch.arange(config.num_drafted) + offsets.to(torch.int64)
    outside = (ids < 0) | (ids >= config.vocab_size)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise CheckpointError(
            f"{checkpoint.path}: d2t makes token {int(ids[first])} of the draft's token {first}; the target's "
            f"vocabulary ends at {config.vocab_size}"
        )
    return ids


def _is_copy(table: torch.Tensor, target: Checkpoint, dtype: torch.dtype) -> bool:
    """Whether a table would hold the numbers of the target's embedding, as both are held."""
    if target.format != "safetensors" or read_headers(target.path) is None:
        return False
    source, name = open_safetensors(target.path), "model.embed_tokens.weight"
    if name not in source.names():
        return False
    other = _read(source, name)
    if other.shape != table.shape:
        return False
    parts = zip(table.split(_ROWS_AT_ONCE), other.split(_ROWS_AT_ONCE), strict=True)
    return all(torch.equal(ours.to(dtype), theirs.to(dtype)) for ours, theirs in parts)


def _read(source: SafetensorsSource, name: str) -> torch.Tensor:
    [(_, tensor)] = source.read([name])
    return tensor
