"""What is refused by name before a model of transformers is built: what would leak, or change with the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.architectures.registry import UnsupportedArchitectureError
from atom_models.checkpoint.layer_types import FULL, SLIDING

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext

# Their table follows from the longest position of a step: so neighbors in a batch would change a request's numbers.
GROWING_ROPES = ("longrope", "dynamic")


class FallbackRefusedError(UnsupportedArchitectureError):
    """transformers' layers would not give this model's results under paged attention; the message says why."""


def refuse(model_type: str, reason: str) -> FallbackRefusedError:
    """The error for a model type, with the reason in words."""
    return FallbackRefusedError(f"transformers' layers of {model_type!r} cannot run here: {reason}")


def refuse_pictures(model_type: str, reason: str) -> FallbackRefusedError:
    """The error for a model type whose texts may be served and whose pictures cannot be."""
    return FallbackRefusedError(
        f"pictures of {model_type!r} cannot be seen by transformers' tower here: {reason}; --language-model-only "
        "(language_model_only) may serve its texts"
    )


def check_config(config: Any, context: BuildContext) -> None:
    """Refuses what the config alone gives away.

    Raises:
        FallbackRefusedError: it names the field.
    """
    _check_context(config, context)
    text = config.get_text_config()
    _check_layer_types(text)
    for rope in _ropes(text):
        _check_rope(text, rope, context.max_model_len)


def _check_layer_types(config: Any) -> None:
    # Layers of other kinds keep a state between tokens, which would go on from one packed sequence to the next.
    for layer_id, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in (FULL, SLIDING):
            raise refuse(
                config.model_type,
                f"layer_types[{layer_id}] is {kind!r}, and only {FULL} and {SLIDING} keep packed sequences apart",
            )


def _check_context(config: Any, context: BuildContext) -> None:
    if context.collectives.size > 1:
        raise refuse(config.model_type, f"they are not split, and {context.collectives.size} ranks are asked for")
    if context.stage.count > 1:
        raise refuse(config.model_type, f"they are not split, and {context.stage.count} stages are asked for")
    if context.aux_hidden_states:
        raise refuse(config.model_type, "they give no hidden states of single layers, which a drafter asks for")
    if getattr(config, "quantization_config", None) is not None:
        raise refuse(config.model_type, "they run on plain weights, and config.json has a quantization_config")


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    given = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in given.values() if isinstance(one, Mapping)]
    return nested or [given]


def _check_rope(config: Any, rope: Mapping[str, Any], max_model_len: int | None) -> None:
    kind = rope.get("rope_type")
    if kind not in GROWING_ROPES:
        return
    original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    if max_model_len is None or max_model_len > original:
        raise refuse(
            config.model_type,
            f"rope_type {kind!r} takes its angles from the longest sequence of a batch, so that results would depend "
            f"on neighbors; up to {original} tokens it does not: give --max-model-len {original}",
        )
