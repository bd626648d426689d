"""First tokens of prompts with a picture: one that is new, one that was seen before, and as many tokens of text."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from atom_core import LLMEngine, SamplingParams
from atom_core.messages import Image
from benchmarks import documents, machine, report, timing
from benchmarks.gpu.models import MODELS
from benchmarks.peers import random_tokens

# Tokens below this number are words, or those from it on where marks of pictures are below.
_WORDS = 100
NEW, AGAIN, TEXT = "a new picture", "a picture seen before", "as many tokens of text"
_TEXT_CONFIG = {
    **{name: value for name, value in MODELS["qwen3-8b"].items() if name != "architectures"},
    "rope_theta": 5000000, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-vl-8b": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": False,
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653, "torch_dtype": "bfloat16", "text_config": _TEXT_CONFIG,
        "vision_config": {
            "model_type": "qwen3_vl", "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_size": 1152,
            "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "intermediate_size": 4304, "num_heads": 16,
            "num_position_embeddings": 2304, "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks images`."""
    parser.add_argument("--model", default="qwen3-vl-8b", help=f"{', '.join(SHAPES)} (dummy weights), or a folder")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", type=int, default=1024, help="pixels on each side of the picture")
    parser.add_argument("--text", type=int, default=32, help="tokens of text in the prompt, beside the picture's")
    parser.add_argument("--turns", type=int, default=5, help="turns of each kind of prompt")
    parser.add_argument("--steps", type=int, default=4, help="timed prompts in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    with contextlib.ExitStack() as open_now:
        prompts = Prompts(_open(options, open_now), side=options.side, num_text=options.text)
        watched = machine.Interference([os.getpid()])
        sides = {NEW: prompts.new, AGAIN: prompts.again, TEXT: prompts.text}
        turns = {name: _turn(prompt, prompts.first_token) for name, prompt in sides.items()}
        timings = timing.interleave(turns, turns=options.turns, steps=options.steps)
        others = watched.share()
    result = {"num_tokens": prompts.num_tokens, "sides": {name: taken.summary() for name, taken in timings.items()}}
    settings = documents.flags_of(options, "model", "dtype", "threads", "side", "text", "turns", "steps")
    document = documents.document_of("images", options, settings, idle=idle, others=[others], results=[result])
    document["machine"] |= machine.device()
    print(table(document))
    report.save_unless_doubtful(document, options)
    return 0


def table(document: dict[str, Any]) -> str:
    """A result in markdown, with the facts of the run under it."""
    [result], settings = document["results"], document["settings"]
    rows = [("a prompt with", "to its first token, median", "range")]
    for name, side in result["sides"].items():
        low, high = side["range_ms"]
        rows.append((name, f"{side['median_ms']:.1f} ms", f"{low:.1f} - {high:.1f} ms"))
    what = f"{settings['side']} x {settings['side']} pixels, {result['num_tokens']} tokens in all"
    return f"{report.markdown_table(rows)}\n\n{what}; {report.conditions(document)}"


class Prompts:
    """Prompts of one length for an engine, with other text each: the KV cache has none of them.

    Attributes:
        num_tokens: how many each prompt has.
    """

    def __init__(self, engine: LLMEngine, *, side: int, num_text: int) -> None:
        spec = engine.info.images
        if spec is None:
            raise SystemExit(f"{engine.info.model} reads text alone: name a model that sees")
        self._engine, self._num_text = engine, num_text
        self._size, start, end = spec.fitted(side, side), spec.start_token_id, spec.end_token_id
        # Some token must follow a picture.
        self._marks = [*([] if start is None else [start]), spec.image_token_id, _WORDS if end is None else end]
        self.num_tokens = num_text + len(self._marks) - 1 + spec.num_tokens(*self._size)
        self._random, self._pixels = random.Random(1), np.random.default_rng(1)
        self._seen = self._picture()

    def new(self) -> dict[str, Any]:
        """With pixels that no prompt had before."""
        return self._with(self._picture())

    def again(self) -> dict[str, Any]:
        """With the picture of the prompt before of this kind: its features are there."""
        return self._with(self._seen)

    def text(self) -> dict[str, Any]:
        """Without a picture."""
        return {"prompt_token_ids": self._words(self.num_tokens)}

    def first_token(self, prompt: dict[str, Any]) -> None:
        """From `add_request` to the first token."""
        self._engine.add_request([prompt], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
        while not self._engine.step():
            pass

    def _with(self, picture: Image) -> dict[str, Any]:
        return {"prompt_token_ids": [*self._words(self._num_text), *self._marks], "images": [picture]}

    def _picture(self) -> Image:
        height, width = self._size
        return Image.of(height, width, self._pixels.bytes(3 * height * width))

    def _words(self, count: int) -> list[int]:
        # Marks have the last numbers of a vocabulary, or some of the first.
        least = min(self._marks)
        behind = 0 if least > _WORDS else _WORDS
        return [behind + token for token in random_tokens(self._random, count, _WORDS if behind else least)]


def _turn(make: Callable[[], dict[str, Any]], first_token: Callable[[dict[str, Any]], None]) -> Any:
    """Takes turns whose prompts are made before the clock runs."""

    def turn(warm_up: int, steps: int) -> list[float]:
        prompts = iter([make() for _ in range(warm_up + steps)])
        return timing.take_turn(lambda: first_token(next(prompts)), warm_up, steps)

    return turn


def _open(options: argparse.Namespace, open_now: contextlib.ExitStack) -> LLMEngine:
    shape = SHAPES.get(options.model)
    if shape is None:
        path = Path(machine.model_path(options.model))
    else:
        path = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="atom-images-")))
        (path / "config.json").write_text(json.dumps(shape))
    print(f"loading {options.model} ...", file=sys.stderr)
    engine = LLMEngine(
        str(path),
        dtype=options.dtype,
        num_threads=options.threads,
        max_model_len=4096 if shape is not None else None,
        skip_tokenizer_init=True,
        load_dummy=shape is not None,
    )
    open_now.callback(engine.close)
    return engine
