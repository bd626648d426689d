"""First tokens behind pictures on a GPU, ours beside vLLM's: what is timed, and what the peer reads them by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.gpu import engines
from benchmarks.gpu.models import MODELS, write_config
from benchmarks.gpu.protocol import Sizes
from benchmarks.gpu.workloads import Measurement
from benchmarks.picture_prompts import AGAIN, NEW, TEXT, PicturePrompt

SIZES = Sizes(batch_sizes=(), contexts=(), prompts=(), repeats=1)


class Watched:
    """An engine that keeps the prompts that it got."""

    def __init__(self) -> None:
        self.seen: list[PicturePrompt] = []

    def first_token(self, prompt: PicturePrompt) -> None:
        self.seen.append(prompt)


def test_first_tokens_are_timed_behind_new_pictures_one_that_was_seen_and_as_much_text() -> None:
    engine = Watched()
    figures = list(Measurement(cast(Any, engine), SIZES, MODELS["qwen3-vl-8b"]).run(["picture"]))
    assert [(figure.about["prompt"], len(figure.values)) for figure in figures] == [(NEW, 2), (AGAIN, 2), (TEXT, 2)]
    new, again, text = engine.seen[:5], engine.seen[5:10], engine.seen[10:]
    assert len({prompt.pixels.tobytes() for prompt in new if prompt.pixels is not None}) == 5
    assert len({prompt.pixels.tobytes() for prompt in again if prompt.pixels is not None}) == 1
    assert len({tuple(prompt.token_ids) for prompt in engine.seen}) == 15
    assert [len(prompt.token_ids) for prompt in text] == [figures[0].about["tokens"]] * 5 == [32 + 2 + 1024] * 5
    with pytest.raises(ValueError, match="reads text alone"):
        list(Measurement(cast(Any, engine), SIZES, MODELS["qwen3-8b"]).run(["picture"]))


def test_the_peer_reads_pictures_by_the_processor_that_is_written_beside_the_config(tmp_path: Path) -> None:
    seeing, reading = write_config("qwen3-vl-8b", tmp_path, 2), write_config("qwen3-8b", tmp_path, 2)
    assert engines._reading_of(reading) == {"skip_tokenizer_init": True}
    assert engines._reading_of(seeing) == {"limit_mm_per_prompt": {"image": 1, "video": 0}}
    words = json.loads((seeing / "tokenizer.json").read_text())["model"]["vocab"]
    assert (len(words), words["<|image_pad|>"]) == (151936, 151655)
