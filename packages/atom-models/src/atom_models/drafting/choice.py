"""Which draft model there is for a target, and what it reads of it: known before either is built.

Prediction layers are known without torch, heads of EAGLE's kinds are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atom_models.architectures.registry import describe_architecture, supported_architectures
from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.prediction_layers import num_prediction_layers
from atom_models.fallback.choice import choose_implementation

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint
    from atom_models.drafting.eagle_config import EagleConfig


# Whose embeddings are scaled: what an EAGLE head would read of them is not known.
_SCALED_EMBEDDINGS = ("Gemma3ForCausalLM",)


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """A draft model before it is built.

    Attributes:
        method: what it is: the target's own prediction layers (mtp), or a head of EAGLE's or EAGLE-3's kind.
        num_layers: layers that have a cache.
        aux_hidden_states: ids of the target's layers whose outputs it reads, for the `BuildContext` of the target.
    """

    method: Literal["mtp", "eagle", "eagle3"]
    num_layers: int
    aux_hidden_states: tuple[int, ...] = ()


def prediction_layers(checkpoint: Checkpoint) -> int:
    """How many prediction layers a checkpoint declares; 0 where it declares none.

    Raises:
        CheckpointError: the field is not a count.
    """
    return num_prediction_layers(checkpoint.text_config)


def choose_draft(
    checkpoint: Checkpoint, draft_checkpoint: Checkpoint | None = None, *, model_impl: str = "auto"
) -> DraftChoice:
    """The draft model for the target `checkpoint`: its prediction layers, or the head in `draft_checkpoint`.

    Args:
        model_impl: as of the target's `BuildContext`.

    Raises:
        CheckpointError: there is none that could be built; the message says why, and what to do.
    """
    runs_elsewhere = choose_implementation(checkpoint, model_impl).name == "transformers"
    if draft_checkpoint is not None:
        if runs_elsewhere:
            raise _no_head(checkpoint, "runs in transformers' layers, behind which no head can draft")
        return _choose_head(checkpoint, draft_checkpoint)
    name, count = checkpoint.architecture, prediction_layers(checkpoint)
    if runs_elsewhere:
        raise _no_prediction_layers(checkpoint, f"{name} runs in transformers' layers, which have none")
    if not describe_architecture(name).has_prediction_layers:
        having = [one for one in supported_architectures() if describe_architecture(one).has_prediction_layers]
        declared = f"config.json declares {count}, but those" if count else "those"
        raise _no_prediction_layers(
            checkpoint, f"{declared} of {name} are not implemented: those of {', '.join(having)} are"
        )
    count = count or describe_architecture(name).num_undeclared
    if not count:
        raise _no_prediction_layers(checkpoint, "config.json declares none (num_nextn_predict_layers)")
    if checkpoint.format != "safetensors":
        raise _no_prediction_layers(checkpoint, "those of GGUF files are not read: take a folder of safetensors")
    return DraftChoice(method="mtp", num_layers=count)


def _choose_head(checkpoint: Checkpoint, draft: Checkpoint) -> DraftChoice:
    from atom_models.drafting.eagle_config import eagle_method, read_eagle_config

    if draft.format != "safetensors":
        raise CheckpointError(f"{draft.path}: draft models of GGUF files are not read: take a folder of safetensors")
    if checkpoint.architecture in _SCALED_EMBEDDINGS:
        raise _no_head(
            checkpoint, f"is {checkpoint.architecture}, which scales its embeddings: no head for it is known"
        )
    method, config, target = eagle_method(draft), read_eagle_config(draft), checkpoint.text_config
    mistakes = [
        ("vocabulary", "vocab_size", config.vocab_size, target.get("vocab_size")),
        ("hidden size of the target", "target_hidden_size or hidden_size", config.target_size, target["hidden_size"]),
    ]
    for what, field, own, of_target in mistakes:
        if own != of_target:
            raise CheckpointError(
                f"{draft.path} was made for another model than {checkpoint.path}: its {what} is {own} ({field}), and "
                f"that model's is {of_target}"
            )
    if config.num_drafted > config.vocab_size:
        raise CheckpointError(
            f"{draft.path}: draft_vocab_size is {config.num_drafted}, more than the {config.vocab_size} tokens that "
            "there are"
        )
    if method == "eagle":
        _check_eagle(draft, config)
        return DraftChoice(method=method, num_layers=config.num_hidden_layers)
    aux = _aux_hidden_states(draft, config, int(target["num_hidden_layers"]))
    return DraftChoice(method=method, num_layers=config.num_hidden_layers, aux_hidden_states=aux)


def _check_eagle(draft: Checkpoint, config: EagleConfig) -> None:
    """Refuses what the heads of EAGLE-3 have and those of EAGLE have not."""
    fields = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "eagle_aux_hidden_state_layer_ids")
    given = [name for name in fields if getattr(config, name)]
    given += ["draft_vocab_size"] * (config.num_drafted != config.vocab_size)
    given += ["target_hidden_size"] * (config.target_size != config.hidden_size)
    given += ["logit_scale"] * (config.logit_scale != 1)
    if given:
        raise CheckpointError(
            f"{draft.path} has the layers of an EAGLE head, and config.json sets {', '.join(given)}, which EAGLE-3 "
            "alone has: take another draft model"
        )


def _aux_hidden_states(draft: Checkpoint, config: EagleConfig, num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs the head reads.

    Ids are written in two ways, and no field says which. Those that begin with 1 name layers by their outputs, as
    ModelOpt writes them. All others name layers by their inputs: the outputs of the layers before. No head is known
    that reads what the first layer gives, so the first id tells them apart (as in SGLang, pull request 25454).
    """
    ids = config.eagle_aux_hidden_state_layer_ids
    given = "" if ids else " (for want of the field)"
    ids = ids or [2, num_layers // 2, num_layers - 3]
    are_numbers = isinstance(ids, list) and all(isinstance(one, int) for one in ids)
    are_outputs = are_numbers and ids[0] == 1
    last, ends = (num_layers - 1, "outputs") if are_outputs else (num_layers, "inputs")
    if not are_numbers or sorted(set(ids)) != ids or ids[0] < 1 or ids[-1] > last:
        raise CheckpointError(
            f"{draft.path}: eagle_aux_hidden_state_layer_ids is {ids}{given}; they must ascend, from 1 to {last}: the "
            f"target has {num_layers} layers, and such ids name their {ends}"
        )
    return tuple(ids) if are_outputs else tuple(one - 1 for one in ids)


def _no_prediction_layers(checkpoint: Checkpoint, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path} has no prediction layers that could draft (mtp): {reason}. Use another model, or another "
        "method, such as ngram"
    )


def _no_head(checkpoint: Checkpoint, reason: str) -> CheckpointError:
    return CheckpointError(f"{checkpoint.path} {reason}. Use another method, such as ngram")
