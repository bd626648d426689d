"""Which draft model there is for a target, and what it reads of it: known before either is built. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atom_models.architectures.registry import describe_architecture, supported_architectures
from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.prediction_layers import num_prediction_layers
from atom_models.fallback.choice import choose_implementation

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """A draft model before it is built.

    Attributes:
        method: what it is: the target's own prediction layers.
        num_layers: that have a cache.
        aux_hidden_states: ids of the target's layers whose outputs it reads, for the `BuildContext` of the target.
    """

    method: Literal["mtp"]
    num_layers: int
    aux_hidden_states: tuple[int, ...] = ()


def prediction_layers(checkpoint: Checkpoint) -> int:
    """How many prediction layers a checkpoint declares; 0 where it declares none.

    Raises:
        CheckpointError: the field is not a count.
    """
    return num_prediction_layers(checkpoint.text_config)


def choose_draft(checkpoint: Checkpoint, *, model_impl: str = "auto") -> DraftChoice:
    """The draft model for the target `checkpoint`: its prediction layers.

    Args:
        model_impl: as of the target's `BuildContext`.

    Raises:
        CheckpointError: there is none that could be built; the message says why, and what to do.
    """
    name, count = checkpoint.architecture, prediction_layers(checkpoint)
    if choose_implementation(checkpoint, model_impl).name == "transformers":
        raise _no_prediction_layers(checkpoint, f"{name} runs in transformers' layers, which have none")
    if not describe_architecture(name).has_prediction_layers:
        having = [one for one in supported_architectures() if describe_architecture(one).has_prediction_layers]
        declared = f"config.json declares {count}, but those" if count else "those"
        raise _no_prediction_layers(
            checkpoint, f"{declared} of {name} are not implemented: those of {', '.join(having)} are"
        )
    if not count:
        raise _no_prediction_layers(checkpoint, "config.json declares none (num_nextn_predict_layers)")
    if checkpoint.format != "safetensors":
        raise _no_prediction_layers(checkpoint, "those of GGUF files are not read: take a folder of safetensors")
    return DraftChoice(method="mtp", num_layers=count)


def _no_prediction_layers(checkpoint: Checkpoint, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path} has no prediction layers that could draft (mtp): {reason}. Use another model, or another "
        "method, such as ngram"
    )
