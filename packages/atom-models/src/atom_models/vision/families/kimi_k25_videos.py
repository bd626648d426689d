"""Videos of Kimi-K2.5: how many frames are seen at once, of how many patches, and how texts say their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.vision.fields import PREPROCESSOR, number, whole
from atom_models.vision.spec import VisionSpec
from atom_models.vision.videos import VideoDefaults, VideoSpec
from atom_models.vision.videos.kimi import TIMESTAMPS

if TYPE_CHECKING:
    from atom_models.checkpoint import Checkpoint

# Fields of the publisher's, and what transformers calls them in the file of videos.
_OF_TRANSFORMERS = {
    "temporal_merge_kernel_size": "temporal_patch_size",
    "in_patch_limit_each_frame": "max_patches",
    "sample_fps": "fps",
}


def read_kimi_videos(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    processor: Mapping[str, Any],
    pictures: VisionSpec,
    defaults: VideoDefaults | None,
) -> VideoSpec | None:
    """How videos are seen, in the publisher's fields or those of transformers; None where they are not.

    Args:
        config: `vision_config` of the checkpoint's config.
        processor: what is said of pictures and videos together.
        pictures: how pictures are seen.

    Raises:
        CheckpointError: a field is none that could be meant, or asks for what is not implemented.
    """
    if defaults is None:
        return None
    fields = _fields(checkpoint, processor, pictures, defaults)
    frames, fps = whole(fields, "temporal_merge_kernel_size", PREPROCESSOR), number(fields["sample_fps"], "sample_fps")
    times = config.get("init_pos_emb_time") or config.get("pos_emb_time") or 4
    if frames > times:
        raise CheckpointError(
            f"{PREPROCESSOR}: temporal_merge_kernel_size is {frames}, and the tower tells {times} frames apart "
            "(vision_config.init_pos_emb_time): the processor is another model's"
        )
    if fps <= 0:
        raise CheckpointError(f"{PREPROCESSOR}: sample_fps is {fps:g}; frames are taken at a rate above 0")
    if fields["timestamp_mode"] not in TIMESTAMPS:
        raise CheckpointError(
            f"{PREPROCESSOR}: timestamp_mode is {fields['timestamp_mode']!r}, which is not implemented; it can be one "
            f"of {', '.join(TIMESTAMPS)}"
        )
    area, bound = pictures.patch_size**2, {"in_patch_limit_video": 0, **_given(fields, "in_patch_limit_video")}
    return VideoSpec(
        token_id=pictures.image_token_id,
        family=defaults.family,
        picture_frames=frames,
        fps=fps,
        min_frames=defaults.min_frames,
        max_frames=whole(fields, "max_num_frames_each_video", PREPROCESSOR),
        min_pixels=pictures.min_pixels,
        max_pixels=whole(fields, "in_patch_limit_each_frame", PREPROCESSOR) * area,
        positions_per_second=0,
        max_pixels_together=whole(bound, "in_patch_limit_video", PREPROCESSOR, least=0) * area,
        timestamps=fields["timestamp_mode"],
    )


def _fields(
    checkpoint: Checkpoint, processor: Mapping[str, Any], pictures: VisionSpec, defaults: VideoDefaults
) -> Mapping[str, Any]:
    """What the publisher's code reads, filled up by what it does where a field is missing or null."""
    of_videos = checkpoint.video_preprocessor_config
    patches = defaults.max_pixels // 14**2
    if "in_patch_limit_each_frame" in processor:  # null is the bound of pictures
        patches = pictures.max_pixels // pictures.patch_size**2
    found = {
        "temporal_merge_kernel_size": 4,
        "in_patch_limit_each_frame": patches,
        "sample_fps": defaults.fps,
        "max_num_frames_each_video": defaults.max_frames,
        "timestamp_mode": "hh:mm:ss.fff",
    }
    for name, other in _OF_TRANSFORMERS.items():
        if of_videos.get(other) is not None:
            found[name] = of_videos[other]
    for name in (*found, "in_patch_limit_video"):
        found |= _given(processor, name)
    return found


def _given(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {} if fields.get(name) is None else {name: fields[name]}
