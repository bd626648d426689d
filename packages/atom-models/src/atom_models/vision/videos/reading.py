"""What a checkpoint says of videos, beside pictures. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.fields import number, whole
from atom_models.vision.videos.defaults import VideoDefaults
from atom_models.vision.videos.spec import VideoSpec

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

_FILE = "video_preprocessor_config.json"
# What else can be said of frames, and is not done here.
_NEVER = ("num_frames", "cap_pixels_per_frame")


def read_videos(checkpoint: Checkpoint, config: Mapping[str, Any], defaults: VideoDefaults | None) -> VideoSpec | None:
    """How videos are seen; None where they are not, or where no token stands for them.

    Args:
        config: `vision_config` of the checkpoint's config.

    Raises:
        CheckpointError: a field is none that could be meant, or asks for what is not implemented.
    """
    if defaults is None or checkpoint.config.get("video_token_id") is None:
        return None
    processor = checkpoint.video_preprocessor_config or checkpoint.preprocessor_config
    _check(processor, checkpoint.preprocessor_config)
    least, most = _pixels(processor, defaults)
    picture_frames = whole({"temporal_patch_size": 2, **config}, "temporal_patch_size", "config.json: vision_config")
    frames = [_number(processor, name, getattr(defaults, name)) for name in ("min_frames", "max_frames")]
    fps, (fewest, longest) = _number(processor, "fps", defaults.fps), map(int, frames)
    if not (fps > 0 and picture_frames <= longest and fewest <= longest):
        raise CheckpointError(f"{_FILE}: {fewest} to {longest} frames, {fps:g} a second, leave nothing to see")
    steps = defaults.positions_per_second
    if steps:
        steps = whole({"tokens_per_second": steps, **config}, "tokens_per_second", "config.json")
    return VideoSpec(
        token_id=whole(checkpoint.config, "video_token_id", "config.json", least=0),
        family=defaults.family,
        picture_frames=picture_frames,
        fps=fps,
        min_frames=fewest,
        max_frames=longest,
        min_pixels=least,
        max_pixels=most,
        positions_per_second=steps,
    )


def _check(processor: Mapping[str, Any], of_pictures: Mapping[str, Any]) -> None:
    for name in _NEVER:
        if processor.get(name):
            raise CheckpointError(f"{_FILE}: {name} is {processor[name]!r}, which is not implemented; leave it out")
    for name in ("image_mean", "image_std"):
        own, other = processor.get(name), of_pictures.get(name)
        if None not in (own, other) and own != other:
            raise CheckpointError(
                f"{_FILE}: {name} is {own!r}, and that of pictures {other!r}: both must be equal: one tower sees both"
            )


def _pixels(processor: Mapping[str, Any], defaults: VideoDefaults) -> tuple[int, int]:
    size = processor.get("size")
    found = dict(size) if isinstance(size, Mapping) else {}
    for name, given in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if processor.get(given) is not None:
            found[name] = processor[given]
    fields = {"shortest_edge": defaults.min_pixels, "longest_edge": defaults.max_pixels, **found}
    least, most = (whole(fields, name, f"{_FILE}: size") for name in ("shortest_edge", "longest_edge"))
    if least > most:
        raise CheckpointError(f"{_FILE}: videos have at least {least} and at most {most} pixels")
    return least, most


def _number(processor: Mapping[str, Any], name: str, default: float) -> float:
    given = processor.get(name)
    return default if given is None else number(given, name)
