"""`find_draft_model`: finds the draft model of a method of speculation, before any weights are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atom_core.config.options import ConfigError
from atom_core.config.whole_draft_model import check_whole_model

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.speculation import SpeculationConfig
    from atom_models import Checkpoint


def find_draft_model(
    speculation: SpeculationConfig | None, args: EngineArgs, checkpoint: Checkpoint, max_model_len: int
) -> SpeculationConfig | None:
    """`speculation` with its draft model as a folder that is here.

    Args:
        checkpoint: the model that generates.
        max_model_len: the tokens of its longest request.

    Raises:
        ConfigError, CheckpointError: there is none, or it does not go with the model or the method.
    """
    if speculation is None or not speculation.is_by_model:
        return speculation
    method = speculation.method
    from atom_models import open_checkpoint, resolve_model
    from atom_models.drafting.choice import choose_draft

    head = speculation.model
    if head is not None and not Path(head).exists():
        head = str(resolve_model(head))
    if speculation.is_by_whole_model and head is not None:
        check_whole_model(open_checkpoint(head), speculation, args, target=checkpoint, max_model_len=max_model_len)
        return msgspec.structs.replace(speculation, model=head)
    choice = choose_draft(checkpoint, None if head is None else open_checkpoint(head), model_impl=args.model_impl)
    if choice.method != method:
        raise ConfigError(
            f"method is {method}, and {speculation.model} has a head of {choice.method}: give that method"
        )
    if method == "mtp" and choice.num_layers > 1 and speculation.num_tokens > 1:
        raise ConfigError(
            f"num_speculative_tokens is {speculation.num_tokens}, and {args.model} has {choice.num_layers} prediction "
            "layers, of which only the first is run here: ask for 1"
        )
    return msgspec.structs.replace(speculation, model=head)
