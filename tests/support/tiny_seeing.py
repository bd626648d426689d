"""A tiny model that sees, with a tokenizer and a chat template as Qwen's, for servers of text and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seeing_models import make_seeing
from tiny_models import add_special_tokens, write_tokenizer

_VOCABULARY = 512
# From `seeing_models.START` on, and all behind them, which mean nothing.
_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_UNUSED = tuple(f"<|unused_{number}|>" for number in range(7))
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_seeing(folder: Path, words: Sequence[str] = ()) -> Path:
    """Writes a checkpoint of Qwen3-VL for pictures of 1 to 64 tokens of 8 x 8 pixels, and returns its folder.

    The last tokens are `words`.
    """
    make_seeing(folder)
    write_tokenizer(folder, _VOCABULARY)
    add_special_tokens(folder, (*_MARKS, *_UNUSED[len(words) :]), words)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
