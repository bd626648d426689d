"""The benchmark of encoders, on one layer of a small shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import encoder_folders
from benchmarks.__main__ import main
from benchmarks.encoder_folders import Shape, random_texts, text_lengths, write_encoder, write_tokenizer

TINY = Shape("xlm-roberta", encoder_folders.SHAPES["bge-m3"].marks, 96, 32, 4, 48, 66, num_layers=1)


def test_a_text_has_as_many_tokens_as_it_is_counted_for(tmp_path: Path):
    from tokenizers import Tokenizer

    write_tokenizer(TINY, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bounds = {"shortest": 3, "longest": 20}
    encoded = tokenizer.encode_batch(random_texts(tmp_path, 9, **bounds))
    assert [len(text.ids) for text in encoded] == text_lengths(9, **bounds)
    assert not any(TINY.marks.index("[UNK]") in text.ids for text in encoded)


@pytest.mark.slow  # starts two processes with torch
def test_our_engine_and_its_peer_make_the_same_vectors_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, folder = tmp_path / "result.json", tmp_path / "encoder"
    folder.mkdir()
    write_encoder(TINY, folder)
    sizes = "--dtype float32 --threads 1 --texts 5 --shortest 3 --longest 20 --turns 1 --steps 2"
    assert main(["encoders", "--model", str(folder), *sizes.split(), "--output", str(path)]) == 0
    [result] = json.loads(path.read_text())["results"]
    assert result["least_cosine"] == pytest.approx(1, abs=1e-5)
    ours, peer = result["sides"].values()
    assert ours["texts_per_s"] == pytest.approx(5e3 / ours["median_ms"], rel=1e-2)
    [faster] = result["times_faster_than"].values()
    assert faster["median"] == pytest.approx(peer["median_ms"] / ours["median_ms"], abs=0.01)
    assert "5 texts of 3 to 20 tokens a step, on cpu" in capsys.readouterr().out
