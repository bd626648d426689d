# /// script
# requires-python = ">=3.11"
# dependencies = ["lm-eval[api,hf]==0.4.13", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""lm-eval: likelihoods of choices equal to its own Hugging Face backend's to 4 decimals, and the same greedy texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
    "Greece": "Athens", "Cuba": "Havana", "Norway": "Oslo", "Kenya": "Nairobi", "Iran": "Tehran", "Nepal": "Kathmandu",
}  # fmt: skip
NUM_CHOICES, NUM_TEXTS = 4, 6
CHOICE_TASK = """\
task: capital_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: What is the capital of {{country}}?\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
TEXT_TASK = """\
task: capital_text
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
fewshot_split: test
output_type: generate_until
doc_to_text: "Question: What is the capital of {{country}}?\\nAnswer:"
doc_to_target: " {{city}}"
generation_kwargs: {until: ["\\n", "Question:", ".", ",", ";"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    cities = list(CAPITALS.values())
    rows = [
        {
            "country": country,
            "city": city,
            "choices": [(cities + cities)[index + step] for step in range(NUM_CHOICES)],
            "answer": 0,
        }
        for index, (country, city) in enumerate(CAPITALS.items())
    ]
    for name, task, data in [("choice", CHOICE_TASK, rows), ("text", TEXT_TASK, rows[:NUM_TEXTS])]:
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in data))
        (folder / f"{name}.yaml").write_text(task.replace("DATA", str(file)))
    return folder


def evaluate(tasks: Path, task: str, *flags: str) -> tuple[dict[str, Any], list[Any]]:
    """(scores, what the backend gave for every request of every sample) of one run of the command."""
    output = tasks / f"{task}-{flags[1]}"
    command = Path(sys.executable).with_name("lm_eval")
    common = ["--tasks", task, "--include_path", str(tasks), "--log_samples", "--output_path", str(output)]
    subprocess.run([str(command), *flags, *common], check=True, env={**os.environ, "OPENAI_API_KEY": "none"})
    (results,) = output.rglob("results_*.json")
    (samples,) = output.rglob("samples_*.jsonl")
    rows = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    scores = {name: value for name, value in json.loads(results.read_text())["results"][task].items() if "," in name}
    return scores, [row["filtered_resps"] for row in rows]


def served(url: str, model: str, *more: str) -> list[str]:
    settings = ",".join(
        [f"model={model}", f"base_url={url}/v1/completions", "num_concurrent=64", "max_retries=3", *more]
    )
    return ["--model", "local-completions", "--model_args", settings]


def local(checkpoint: Path) -> list[str]:
    return ["--model", "hf", "--model_args", f"pretrained={checkpoint},dtype=float32", "--device", "cpu"]


def test_choices_have_the_likelihoods_of_the_hugging_face_backend(url, model, checkpoint, tasks):
    ours, our_samples = evaluate(tasks, "capital_choice", *served(url, model))
    theirs, their_samples = evaluate(tasks, "capital_choice", *local(checkpoint))
    assert ours == pytest.approx(theirs, abs=5e-5)
    for our, their in zip(our_samples, their_samples, strict=True):
        assert [float(value) for value, _ in our] == pytest.approx([float(value) for value, _ in their], abs=5e-5)
        assert [greedy for _, greedy in our] == [greedy for _, greedy in their]


def test_greedy_texts_with_stops_are_those_of_the_hugging_face_backend(url, model, checkpoint, tasks):
    fewshot = ["--num_fewshot", "2"]
    ours, our_texts = evaluate(tasks, "capital_text", *served(url, model, "tokenized_requests=False"), *fewshot)
    theirs, their_texts = evaluate(tasks, "capital_text", *local(checkpoint), *fewshot)
    assert our_texts == their_texts
    assert any(text[0].strip() for text in our_texts)
    assert ours == pytest.approx(theirs, abs=5e-5)
