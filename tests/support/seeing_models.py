"""Tiny random Qwen3-VL and Qwen3.5 checkpoints on disk, and pictures for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atom_core.messages import Image
from tiny_models import write_tokenizer

IMAGE, START, END, VIDEO = 503, 501, 502, 504
UNIT = 8
_TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 2],
}


# What Qwen3.5 has besides: delta nets, of which three go before each layer of attention, and no DeepStack.
_DELTA_NETS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
_MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3_vl": ({}, {}),
    "qwen3_5": (_DELTA_NETS, {"deepstack_visual_indexes": []}),
}


_PROCESSOR = {"processor_class": "Qwen3VLProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def make_seeing(folder: str | Path, head_dim: int = 16, model_type: str = "qwen3_vl") -> Path:
    """Writes a float32 checkpoint of a Qwen3-VL, or Qwen3.5, for pictures of 64 to 4096 pixels; returns its folder."""
    import transformers

    from tiny_architectures import redraw

    folder, (of_text, of_vision) = Path(folder), _MORE[model_type]
    config = transformers.AutoConfig.for_model(
        model_type,
        text_config=_TEXT | of_text | {"head_dim": head_dim, "rope_parameters": _rope(head_dim, model_type)},
        vision_config=_VISION | of_vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    redraw(model)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    pictures = {"size": {"shortest_edge": UNIT * UNIT, "longest_edge": 64 * 64}}
    pictures |= _PROCESSOR | _HALVES | {"image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures))
    frames = {"size": {"shortest_edge": 128, "longest_edge": 16_384}, "fps": 2, "min_frames": 2, "max_frames": 16}
    frames |= _PROCESSOR | _HALVES | {"video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(frames))
    return folder


def _rope(head_dim: int, model_type: str) -> dict[str, Any]:
    """A quarter of each head rotates in Qwen3.5."""
    part = 0.25 if model_type == "qwen3_5" else 1.0
    half = int(head_dim * part) // 2
    sections = [half // 2, half // 4, half // 4]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, "mrope_interleaved": True}
    return rope if part == 1.0 else rope | {"partial_rotary_factor": part}


def _write_tokenizer(folder: Path) -> None:
    """With the marks of pictures behind all other tokens."""
    write_tokenizer(folder, START)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    marks = {START: "<|vision_start|>", END: "<|vision_end|>", IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>"}
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [like | {"id": number, "content": text} for number, text in marks.items()]
    path.write_text(json.dumps(tokenizer))


def picture(seed: int, rows: int = 4, columns: int = 6) -> Image:
    """A picture of ``rows * columns`` tokens."""
    size = rows * UNIT, columns * UNIT
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.of(*size, pixels.tobytes())


def around(*parts: list[int] | Image) -> tuple[list[int], list[Image]]:
    """A prompt of texts and pictures, each with its marks, and these pictures."""
    tokens: list[int] = []
    for part in parts:
        tokens += [START, IMAGE, END] if isinstance(part, Image) else part
    return tokens, [part for part in parts if isinstance(part, Image)]


def tokens_of_transformers(
    folder: Path, prompts: list[tuple[list[int], list[Image]]], num_tokens: int | None
) -> list[list[int]]:
    """The greedy tokens that `transformers` generates after each prompt."""
    import transformers

    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for tokens, images in prompts:
        given = _inputs(tokens, images)
        output = model.generate(
            **given,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
        )
        found.append(output[0, given["input_ids"].shape[1] :].tolist())
    return found


def states_of_transformers(folder: Path, prompts: list[tuple[list[int], list[Image]]]) -> list[torch.Tensor]:
    """The last hidden states ``[T, D]`` that `transformers` gives for each prompt."""
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().model
    with torch.inference_mode():
        return [model(**_inputs(tokens, images)).last_hidden_state[0] for tokens, images in prompts]


def logprobs_of_transformers(folder: Path, prompts: list[tuple[list[int], list[Image]]]) -> list[torch.Tensor]:
    """What `transformers` thinks of all tokens behind each token of a prompt: logarithms ``[T, V]`` of probabilities.

    Pictures have all their tokens among the T.
    """
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(**_inputs(tokens, images)).logits[0].log_softmax(-1) for tokens, images in prompts]


def _inputs(tokens: list[int], images: list[Image]) -> dict[str, torch.Tensor]:
    """What a model of `transformers` takes for a prompt with one image token for each picture."""
    left = iter(images)
    ids = torch.tensor([[t for token in tokens for t in [token] * (_num_tokens(next(left)) if token == IMAGE else 1)]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == IMAGE).int()}
    if images:
        grids = [(1, image.height // 4, image.width // 4) for image in images]
        given |= {"pixel_values": torch.cat([_patches(each) for each in images]), "image_grid_thw": torch.tensor(grids)}
    return given


def _num_tokens(image: Image) -> int:
    return image.height * image.width // UNIT**2


def _patches(image: Image) -> torch.Tensor:
    """What the processor of `transformers` makes of a picture: a row for each patch, square by square."""
    pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3).astype(np.float32)
    frames = np.stack([(pixels / 255 - 0.5) / 0.5] * 2).transpose(0, 3, 1, 2)
    rows, columns = image.height // UNIT, image.width // UNIT
    squares = frames.reshape(1, 2, 3, rows, 2, 4, columns, 2, 4).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return torch.from_numpy(squares.reshape(4 * rows * columns, -1).copy())
