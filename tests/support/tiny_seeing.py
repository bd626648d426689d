"""Tiny models that see, with tokenizers and chat templates as Qwen's and Kimi's, for servers of text and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from seeing_models import make_seeing
from tiny_models import add_special_tokens, write_tokenizer

_VOCABULARY = 512
# From `seeing_models.START` on, and all behind them, which mean nothing.
_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_UNUSED = tuple(f"<|unused_{number}|>" for number in range(7))
_KIMI_VOCABULARY = 384
_KIMI_MARKS = ("<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>")
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


KIMI_TEMPLATE = TEMPLATE.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
).replace("<|vision_start|><|video_pad|><|vision_end|>", "<|kimi_k25_video_placeholder|>")


def make_tiny_kimi(folder: Path) -> Path:
    """Writes a checkpoint of Kimi-K2.5 for pictures of 8 x 8 pixels a token, and returns its folder."""
    from tiny_architectures import make_tiny

    make_tiny("kimi_k25", folder)
    write_tokenizer(folder, _KIMI_VOCABULARY)
    add_special_tokens(folder, _KIMI_MARKS)
    path = folder / "config.json"
    named = dict.fromkeys(("media_placeholder_token_id", "image_token_id"), _KIMI_VOCABULARY - len(_KIMI_MARKS))
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    (folder / "chat_template.jinja").write_text(KIMI_TEMPLATE)
    return folder
