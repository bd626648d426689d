"""A tiny Qwen3-VL that names the color of the last picture of a prompt: its weights are written by hand.

A random model says whether two programs compute the same; this one says whether what they compute is right. Its answer
is the word for the color that the picture has most of: ``red``, ``green`` or ``blue``, or ``nothing`` where there is no
picture or one that is mostly black; and then it ends. All weights are 0, so that the layers which are not named here
change nothing, but for those of norms, which are 1, and these:

- Patches. Pixels come as -1 to 1. Each color has an element that is its mean over the patch, and one of the opposite,
  which makes the sum of all elements 0: layer norms scale them, and move nothing.
- The first layer of the tower. Queries and keys are 0, so each patch sees all of its picture alike, and nothing else.
  It adds the mean of the picture many times over: now each patch has the color of the whole.
- The merger. A token takes the mean of its four patches, and the activation leaves what is above 0: of a picture
  that is mostly red, red alone.
- Embeddings. Words and marks have the element TEXT, and the words of the answer SAID.
- The first layer of the decoder. A token of text asks, and tokens with a color answer; both stand in a pair of elements
  that turns slowly with the time, so that their product falls with the distance. It is so large that the nearest
  picture has all the attention. Its color is added to what the asking token has.
- The head. The color is larger than TEXT, which says ``nothing``; SAID is the largest, and says that the answer ends.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny_models import EOS_ID
from tiny_seeing import make_tiny_seeing

COLORS = ("red", "green", "blue")
NOTHING = "nothing"
# Elements of the decoder's hidden states: the colors come first.
_TEXT, _SAID = 3, 4
# The words are the last tokens of 512.
_FIRST_WORD, _NOTHING = 508, 511
# The slowest pair of a head of 16 elements that turns by time in each model of these sections (4, 2 and 2).
_SLOW = 6


def make_color_naming(folder: Path) -> Path:
    """Writes the checkpoint, and returns its folder."""
    make_tiny_seeing(folder, words=(*COLORS, NOTHING))
    file = folder / "model.safetensors"
    weights = {name: _blank(name, weight) for name, weight in load_file(file).items()}
    for color in range(len(COLORS)):
        _see(weights, color)
        _tell(weights, color)
    _speak(weights)
    save_file(weights, file, {"format": "pt"})
    return folder


def _blank(name: str, weight: np.ndarray) -> np.ndarray:
    is_norm = "norm" in name and name.endswith("weight")
    return np.full_like(weight, 1.0 if is_norm else 0.0)


def _see(weights: dict[str, np.ndarray], color: int) -> None:
    """From the pixels of a color to its element of the tower, and from there to that of the decoder."""
    tower, opposite = "model.visual", len(COLORS) + color
    patches = weights[f"{tower}.patch_embed.proj.weight"]
    hidden = len(patches)
    for element, sign in ((color, 1.0), (opposite, -1.0)):
        patches[element, color] = sign / patches[element, color].size
        values = 2 * hidden + element
        weights[f"{tower}.blocks.0.attn.qkv.weight"][values, element] = 1.0
        weights[f"{tower}.blocks.0.attn.proj.weight"][element, element] = 8.0
    weights[f"{tower}.merger.linear_fc1.weight"][color, color::hidden] = 10.0
    weights[f"{tower}.merger.linear_fc2.weight"][color, color] = 1.0


def _tell(weights: dict[str, np.ndarray], color: int) -> None:
    """From the color of a picture to the word."""
    attention = "model.language_model.layers.0.self_attn"
    weights[f"{attention}.k_proj.weight"][_SLOW, color] = 1.0
    weights[f"{attention}.v_proj.weight"][color, color] = 1.0
    weights[f"{attention}.o_proj.weight"][color, color] = 1.0
    weights["lm_head.weight"][_FIRST_WORD + color, color] = 1.0


def _speak(weights: dict[str, np.ndarray]) -> None:
    """From text to questions, and from a word of the answer to its end."""
    embeddings, head = weights["model.language_model.embed_tokens.weight"], weights["lm_head.weight"]
    embeddings[:_FIRST_WORD, _TEXT], embeddings[_FIRST_WORD:, _SAID] = 1.0, 100.0
    head[_NOTHING, _TEXT] = head[EOS_ID, _SAID] = 1.0
    attention = "model.language_model.layers.0.self_attn"
    weights[f"{attention}.q_proj.weight"][_SLOW, _TEXT] = 1.0
    weights[f"{attention}.q_norm.weight"][:] = 1e5
