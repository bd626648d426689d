"""First tokens of prompts with a picture: one that is new, one that was seen before, and as many tokens of text."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atom_core import LLMEngine, SamplingParams
from benchmarks import documents, machine, report, timing
from benchmarks.gpu.models import MODELS, write_config
from benchmarks.picture_prompts import AGAIN, NEW, TEXT, Marks, PicturePrompts

SEEING = tuple(name for name, config in MODELS.items() if "vision_config" in config)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks images`."""
    parser.add_argument("--model", default="qwen3-vl-8b", help=f"{', '.join(SEEING)} (dummy weights), or a folder")
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
    """Prompts for an engine (see `PicturePrompts`), and the time to their first tokens.

    Attributes:
        num_tokens: how many each prompt has.
    """

    def __init__(self, engine: LLMEngine, *, side: int, num_text: int) -> None:
        spec = engine.info.images
        if spec is None:
            raise SystemExit(f"{engine.info.model} reads text alone: name a model that sees")
        size = spec.fitted(side, side)
        marks = Marks(spec.start_token_id, spec.image_token_id, spec.end_token_id)
        count = spec.num_tokens(*size)
        self._prompts = PicturePrompts(marks, size=size, num_picture_tokens=count, num_text=num_text)
        self._engine, self.num_tokens = engine, self._prompts.num_tokens

    def new(self) -> dict[str, Any]:
        """With pixels that no prompt had before."""
        return self._prompts.new().as_ours()

    def again(self) -> dict[str, Any]:
        """With the picture of the prompt before of this kind: its features are there."""
        return self._prompts.again().as_ours()

    def text(self) -> dict[str, Any]:
        """Without a picture."""
        return self._prompts.text().as_ours()

    def first_token(self, prompt: dict[str, Any]) -> None:
        """From `add_request` to the first token."""
        self._engine.add_request([prompt], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
        while not self._engine.step():
            pass


def _turn(make: Callable[[], dict[str, Any]], first_token: Callable[[dict[str, Any]], None]) -> Any:
    """Takes turns whose prompts are made before the clock runs."""

    def turn(warm_up: int, steps: int) -> list[float]:
        prompts = iter([make() for _ in range(warm_up + steps)])
        return timing.take_turn(lambda: first_token(next(prompts)), warm_up, steps)

    return turn


def _open(options: argparse.Namespace, open_now: contextlib.ExitStack) -> LLMEngine:
    is_shape = options.model in SEEING
    if not is_shape:
        path = Path(machine.model_path(options.model))
    else:
        folder = open_now.enter_context(tempfile.TemporaryDirectory(prefix="atom-images-"))
        path = write_config(options.model, Path(folder))
    print(f"loading {options.model} ...", file=sys.stderr)
    engine = LLMEngine(
        str(path),
        dtype=options.dtype,
        num_threads=options.threads,
        max_model_len=4096 if is_shape else None,
        skip_tokenizer_init=True,
        load_dummy=is_shape,
    )
    open_now.callback(engine.close)
    return engine
