"""What an engine that takes texts and pictures reads beside `config.json`: a tokenizer and sizes of pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Words of a tokenizer that stand for pictures, by the field of a config that names their number.
_MARKS = {
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
}  # fmt: skip


def write_processor(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a tokenizer of as many words as the model has, and the processor of pictures of Qwen3-VL's family."""
    _write(folder / "tokenizer.json", _tokenizer(config))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"})
    vision = config["vision_config"]
    sizes = {
        "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    picture = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor"}
    picture |= {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
    _write(folder / "preprocessor_config.json", picture | sizes)
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor"}
    video |= {"size": {"shortest_edge": 4096, "longest_edge": 25165824}}
    _write(folder / "video_preprocessor_config.json", video | sizes)


def _tokenizer(config: Mapping[str, Any]) -> dict[str, Any]:
    marks = {config[field]: word for field, word in _MARKS.items()}
    words = {marks.get(number, f"w{number}"): number for number in range(config["text_config"]["vocab_size"])}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **plain} for number, word in sorted(marks.items())],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))
