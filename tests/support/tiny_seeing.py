"""A tiny model that sees, with a tokenizer and a chat template as Qwen's: text and pictures go through all of a server."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_architectures import make_tiny
from tiny_models import add_special_tokens

MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
# Pixels on each side of the square of one token.
UNIT = 8
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_seeing(folder: Path) -> Path:
    """Writes a checkpoint of Qwen2.5-VL for pictures of 4 to 64 tokens, and returns its folder."""
    make_tiny("qwen2_5_vl", folder)
    add_special_tokens(folder, MARKS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    pixels = {"min_pixels": 4 * UNIT**2, "max_pixels": 64 * UNIT**2}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder
