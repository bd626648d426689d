"""`resolve_images`: what an engine sees, and how much of it in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_core.config.sections import ImagesConfig
from atom_models.vision.reading import vision_spec

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_models import Checkpoint
    from atom_models.vision.spec import VisionSpec


def resolve_images(
    args: EngineArgs, checkpoint: Checkpoint, max_model_len: int, choices: list[str]
) -> ImagesConfig | None:
    """What is known of pictures; None where the engine reads text alone.

    Pictures are encoded whole: where a step has no room for the largest that the model was made for, they are made
    smaller.

    Args:
        max_model_len: tokens of the longest prompt, which no picture has more of.

    Raises:
        ConfigError: a setting is about pictures, and there are none, or it leaves no room for the smallest.
    """
    spec = None if args.language_model_only else vision_spec(checkpoint)
    if spec is None:
        if args.max_num_image_tokens is not None:
            raise ConfigError(
                f"max_num_image_tokens is {args.max_num_image_tokens}, and {checkpoint.architecture} reads text alone "
                "here: leave it out"
            )
        return None
    if args.max_num_image_tokens is not None:
        spec = _within(spec, args.max_num_image_tokens, choices)
    frames = 1 if spec.video is None else spec.depth(spec.video.picture_frames)
    most_tokens = min(spec.most_encoded, max_model_len * frames)
    return ImagesConfig(spec, most_tokens, args.image_cache_memory)


def image_token_budget(args: EngineArgs, images: ImagesConfig | None, max_num_batched_tokens: int) -> int:
    """Tokens of the pictures that one step encodes: those of the largest at least; 0 where there are none."""
    if images is None:
        return 0
    room = max_num_batched_tokens
    if images.spec.stands_alone:
        # A token is a whole picture: its patches are counted, which are what an encoder computes.
        room //= images.spec.merge_size**2
    return args.max_num_image_tokens or max(images.most_tokens, room)


def _within(spec: VisionSpec, most_tokens: int, choices: list[str]) -> VisionSpec:
    """What is seen where no picture has more tokens than that."""
    if most_tokens < spec.least_encoded:
        raise ConfigError(
            f"max_num_image_tokens is {most_tokens}, and the smallest picture has {spec.least_encoded}: give at least "
            "as many, or language_model_only"
        )
    if most_tokens >= spec.most_encoded:
        return spec
    choices.append(f"pictures are made small enough for {most_tokens} tokens, which a step has room for")
    return spec.within(most_tokens)
