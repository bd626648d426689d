"""The datasets of `atom bench serve`: which prompts they give, and how many tokens they ask for."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from atom_server.bench.datasets import DatasetOptions, Sample, draw_samples
from atom_server.bench.outcome import BenchError
from atom_server.bench.prompt_tokens import FolderTokens, Words


class CountedWords(Words):
    """A word is a token."""

    async def count(self, text: str) -> int:
        return len(text.split())


def draw(tokens: Words | FolderTokens | None = None, **options: Any) -> list[Sample]:
    return asyncio.run(draw_samples(DatasetOptions(**options), tokens or CountedWords()))


def test_random_prompts_repeat_with_their_seed_and_share_their_prefix():
    options: dict[str, Any] = {
        "num_prompts": 200,
        "input_len": 10,
        "output_len_random": 8,
        "range_ratio": 0.5,
        "prefix_len": 3,
    }
    samples = draw(**options)
    assert samples == draw(**options)
    assert samples != draw(**options, seed=1)
    prompts = [str(sample.prompt).split() for sample in samples]
    assert len({tuple(prompt[:3]) for prompt in prompts}) == 1
    assert {len(prompt) for prompt in prompts} == set(range(8, 14)) == {sample.num_tokens for sample in samples}
    assert {sample.output_len for sample in samples} == set(range(4, 9))


def test_a_text_of_random_tokens_is_read_as_so_many(tiny_llama):
    tokens = FolderTokens(str(tiny_llama))
    drawn = tokens.draw(random.Random(0), 40)
    assert abs(tokens.length(str(tokens.prompt(drawn))) - 40) <= 2


def test_lengths_of_burstgpt_are_those_of_gpt4_that_did_not_fail(tmp_path):
    path = tmp_path / "burst.csv"
    rows = ["5,GPT-4,11,7,18,Conversation log", "6,ChatGPT,3,3,6,Conversation log", "7,GPT-4,9,0,9,API log"]
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows))
    samples = draw(name="burstgpt", path=path, num_prompts=3)
    assert [(sample.num_tokens, sample.output_len) for sample in samples] == [(11, 7)] * 3
    assert len(str(samples[0].prompt).split()) == 11


def test_sonnets_share_their_first_lines(tmp_path):
    path = tmp_path / "sonnet.txt"
    path.write_text("\n".join(f"line {number} of four" for number in range(30)))
    options: dict[str, Any] = {"sonnet_input_len": 51, "sonnet_prefix_len": 31, "sonnet_output_len": 5}
    samples = draw(name="sonnet", path=path, num_prompts=4, **options)
    texts = [str(sample.prompt) for sample in samples]
    assert {sample.num_tokens for sample in samples} == {51}
    assert {text.split("\n")[:6][-1] for text in texts} == {"line 4 of four"}
    assert len(set(texts)) == 4
    with pytest.raises(BenchError, match="--sonnet-prefix-len 4"):
        draw(name="sonnet", path=path, sonnet_prefix_len=4)


def hugging_face(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[Any]:
    """Puts a package `datasets` in place that has these rows; gives what it was asked."""
    asked: list[Any] = []

    def load_dataset(path: str, **options: Any) -> list[dict[str, Any]]:
        asked.append((path, options))
        return rows

    package = types.ModuleType("datasets")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return asked


@pytest.mark.parametrize(
    "row",
    [{"turns": ["hi", "more"]}, {"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi"}],
    ids=lambda row: next(iter(row)),
)
def test_rows_of_hugging_face_have_turns_messages_or_a_prompt(monkeypatch, row):
    asked = hugging_face(monkeypatch, [row] * 5)
    options: dict[str, Any] = {
        "name": "hf",
        "path": Path("org/data"),
        "num_prompts": 2,
        "hf_subset": "s",
        "hf_split": "test",
    }
    assert draw(**options, output_len=7) == [Sample("hi", 7)] * 2
    assert asked == [("org/data", {"name": "s", "split": "test", "streaming": True})]


def test_conversations_of_hugging_face_tell_how_long_answers_are(monkeypatch):
    talk = {"conversations": [{"value": "what is it then"}, {"value": "it is this one here"}]}
    hugging_face(monkeypatch, [talk])
    assert draw(name="hf", path=Path("org/data"), num_prompts=1) == [Sample("what is it then", 5, 4)]


def test_a_dataset_of_other_columns_is_refused_by_their_names(monkeypatch):
    hugging_face(monkeypatch, [{"text": "x", "label": 1}])
    with pytest.raises(BenchError, match="has the columns text, label"):
        draw(name="hf", path=Path("org/data"))


def test_without_its_package_hugging_face_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BenchError, match="pip install datasets"):
        draw(name="hf", path=Path("org/data"))


def test_too_few_prompts_are_repeated(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text, "output_tokens": 2}) for text in "ab"))
    prompts = [str(sample.prompt) for sample in draw(name="custom", path=path, num_prompts=5)]
    assert set(prompts[:2]) == {"a", "b"}
    assert prompts[2:] == [*prompts[:2], prompts[0]]


def test_a_separator_of_lines_inside_a_text_stays_there(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b", "output_tokens": 2}, ensure_ascii=False), encoding="utf-8")
    assert [sample.prompt for sample in draw(name="custom", path=path, num_prompts=1)] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("burstgpt", "a,b\n1,2\n", "is no dataset of the kind 'burstgpt': KeyError: 'Model'"),
        ("sonnet", "\n", "has no prompts"),
        ("custom", '{"prompt": "x"}', "a line has no output_tokens"),
    ],
)
def test_a_file_of_another_form_is_told(tmp_path, name, text, reason):
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(BenchError, match=reason):
        draw(name=name, path=path)


def test_a_dataset_without_a_file_says_which_flag_is_missing():
    with pytest.raises(BenchError, match="--dataset-name sonnet needs --dataset-path"):
        draw(name="sonnet")


def test_what_needs_counts_says_so_where_nothing_counts(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([{"conversations": [{"value": "a b c d"}, {"value": "a b c d"}]}]))
    with pytest.raises(BenchError, match="--tokenizer"):
        draw(Words(), name="sharegpt", path=path)
