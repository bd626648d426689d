"""The benchmark of pictures, on a tiny model that sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import images
from benchmarks.__main__ import main
from seeing_models import make_seeing
from tiny_models import make_tiny_llama


def test_a_new_picture_is_encoded_and_one_that_was_seen_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, path = make_seeing(tmp_path / "seeing"), tmp_path / "result.json"
    sizes = "--dtype float32 --threads 1 --side 24 --text 4 --turns 1 --steps 2"
    assert main(["images", "--model", str(folder), *sizes.split(), "--output", str(path)]) == 0
    [result] = json.loads(path.read_text())["results"]
    assert [side["num_steps"] for side in result["sides"].values()] == [4, 2, 2]
    assert f"24 x 24 pixels, {result['num_tokens']} tokens in all" in capsys.readouterr().out


def test_prompts_of_all_kinds_are_as_long_and_only_a_new_picture_is_new(tmp_path: Path):
    from atom_core import LLMEngine

    engine = LLMEngine(str(make_seeing(tmp_path / "seeing")), dtype="float32", num_threads=1, skip_tokenizer_init=True)
    try:
        prompts = images.Prompts(engine, side=24, num_text=4)
        new, other, again, still = prompts.new(), prompts.new(), prompts.again(), prompts.again()
        digests = [prompt["images"][0].digest for prompt in (new, other, again, still)]
        assert len(set(digests)) == 3
        assert digests[2] == digests[3]
        assert len(prompts.text()["prompt_token_ids"]) == prompts.num_tokens
        assert new["prompt_token_ids"] != other["prompt_token_ids"]
    finally:
        engine.close()


def test_a_model_that_reads_text_alone_is_refused(tmp_path: Path):
    make_tiny_llama(tmp_path)
    with pytest.raises(SystemExit, match="reads text alone: name a model that sees"):
        main(["images", "--model", str(tmp_path), "--dtype", "float32", "--threads", "1"])
