"""Which code serves a checkpoint: an architecture of this package, or transformers' layers. Torch-free."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast

from atom_models.architectures.registry import (
    UnsupportedArchitectureError,
    check_architecture,
    other_modalities,
    supported_architectures,
)

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

ModelImpl = Literal["auto", "atom", "transformers"]
MODEL_IMPLS: tuple[ModelImpl, ...] = ("auto", "atom", "transformers")

INSTALL = "pip install 'transformers>=5.23'"


@dataclasses.dataclass(frozen=True)
class Implementation:
    """What serves a checkpoint.

    Attributes:
        name: "atom" or "transformers".
        why: in words, for logs and lists.
    """

    name: Literal["atom", "transformers"]
    why: str

    def describe(self) -> str:
        """In words: the implementation, with what decided it."""
        of = "our own layers" if self.name == "atom" else "transformers' layers over our attention"
        return f"{of} ({self.why})"


def choose_implementation(checkpoint: Checkpoint, requested: str) -> Implementation:
    """The implementation of `requested` ("auto": our own file, and transformers' layers where there is none).

    Raises:
        UnsupportedArchitectureError: it has none, or transformers is not installed; the message says what to do.
        ValueError: `requested` is not one of `MODEL_IMPLS`.
    """
    if requested not in MODEL_IMPLS:
        raise ValueError(f"model_impl {requested!r} is not one of {', '.join(MODEL_IMPLS)}")
    name = checkpoint.architecture
    has_file = name in supported_architectures()
    if requested == "atom" or (requested == "auto" and has_file):
        check_architecture(name, checkpoint.config)
        return Implementation("atom", f"our file of {name}")
    reason = _why_not_transformers(checkpoint)
    if reason is None:
        why = "asked for by model_impl" if requested == "transformers" else f"there is no file of {name} here"
        return Implementation("transformers", why)
    if requested == "auto":
        try:
            check_architecture(name, checkpoint.config)
        except UnsupportedArchitectureError as error:
            raise UnsupportedArchitectureError(
                f"{error} Layers of transformers cannot serve it either: {reason}"
            ) from None
    raise UnsupportedArchitectureError(f"model_impl transformers cannot serve {name}: {reason}")


def _why_not_transformers(checkpoint: Checkpoint) -> str | None:
    if checkpoint.format != "safetensors":
        return "they are loaded from folders of safetensors, and this is a GGUF file"
    takes_more = bool(other_modalities(checkpoint.config))
    if takes_more and checkpoint.architecture in supported_architectures():
        return "they take text alone of what our own file sees: leave model_impl out"
    if find_spec("transformers") is None:
        return f"transformers is not installed ({INSTALL})"
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    names = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if takes_more else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    mapping = cast("dict[str, str]", names)
    if mapping.get(checkpoint.model_type) != checkpoint.architecture:
        return (
            f"the installed transformers has no decoder of model_type {checkpoint.model_type!r} named "
            f"{checkpoint.architecture}, and code of models in a checkpoint's folder is never run"
        )
    return None
