"""`check_whole_model`: whether a model can draft for another one, before weights of either are loaded. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_core.tokenization import Tokenizer
from atom_core.tokenization.hf_folder import has_tokenizer

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.speculation import SpeculationConfig
    from atom_models import Checkpoint


def check_whole_model(
    draft: Checkpoint, speculation: SpeculationConfig, args: EngineArgs, *, target: Checkpoint, max_model_len: int
) -> None:
    """Raise where the model in `draft` cannot guess tokens of the one in `target`.

    Raises:
        ConfigError: it knows other tokens or shorter texts, cannot be run here, or cannot take tokens back.
    """
    name = f"the draft model {draft.path}"
    _check_implementation(draft, args, name)
    _check_quantization(draft, speculation.quantization, name)
    vocab_size, own_size = target.text_config.get("vocab_size"), draft.text_config.get("vocab_size")
    if own_size != vocab_size:
        raise ConfigError(
            f"{name} has a vocabulary of {own_size} tokens, and {args.model} one of {vocab_size}: take a draft model "
            "of the same tokenizer"
        )
    if draft.max_model_len < max_model_len:
        raise ConfigError(
            f"{name} was made for at most {draft.max_model_len} tokens, and max_model_len is {max_model_len}: give "
            f"max_model_len {draft.max_model_len}, or another draft model"
        )
    if (found := _other_token(draft, target, args)) is not None:
        token_id, own, of_target = found
        raise ConfigError(
            f"{name} has {own!r} as token {token_id}, which in {args.model} is {of_target!r}: take a draft model of "
            "the same tokenizer"
        )


def _check_implementation(draft: Checkpoint, args: EngineArgs, name: str) -> None:
    from atom_models.architectures.registry import UnsupportedArchitectureError, keeps_states
    from atom_models.fallback.choice import choose_implementation

    try:
        implementation = choose_implementation(draft, args.model_impl)
    except UnsupportedArchitectureError as error:
        raise ConfigError(f"{name}: {error}") from None
    if implementation.name == "transformers":
        raise ConfigError(
            f"{name} is {draft.architecture}, which runs in transformers' layers, and these draft for nobody: take "
            "another draft model"
        )
    if keeps_states(draft.architecture):
        raise ConfigError(
            f"{name} is {draft.architecture}, and a rejected draft cannot be taken out of its state: take another "
            "draft model"
        )
    if not draft.has_head:
        raise ConfigError(f"{name} has no head, so it guesses no tokens: take another draft model")


def _check_quantization(draft: Checkpoint, requested: str, name: str) -> None:
    from atom_models.quantization import UnsupportedQuantizationError, choose_quantization

    try:
        choose_quantization(draft.config, requested)
    except UnsupportedQuantizationError as error:
        raise ConfigError(f"{name}: {error}") from None


def _other_token(draft: Checkpoint, target: Checkpoint, args: EngineArgs) -> tuple[int, str | None, str | None] | None:
    """The first token that differs, with its text in both; None if all are equal, or a model has no tokenizer."""
    if args.skip_tokenizer_init or not (_has_tokenizer(draft) and (args.tokenizer or _has_tokenizer(target))):
        return None
    own, of_target = Tokenizer.of_model(draft), Tokenizer.of_model(target, args.tokenizer)
    for token_id in range(max(own.vocab_size, of_target.vocab_size)):
        if (mine := own.id_to_token(token_id)) != (theirs := of_target.id_to_token(token_id)):
            return token_id, mine, theirs
    return None


def _has_tokenizer(checkpoint: Checkpoint) -> bool:
    return checkpoint.format == "gguf" or has_tokenizer(checkpoint.path)
