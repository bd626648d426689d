"""Accuracy by tasks: lm-eval asks a server its questions, and what it writes is read as scores."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_server import settings
from atom_server.bench.outcome import BenchError


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What lm-eval is asked for.

    Attributes:
        command: lm-eval's, which may lie in an environment of its own.
        tasks: names that lm-eval knows, or that `include_path` describes.
        num_fewshot: examples before each question; None leaves it to the task.
        limit: questions of each task; None asks all.
        tokenizer: a folder; None counts tokens by the server's `/tokenize`.
        chat: ask by chats, and let the server render them, in the place of completions.
    """

    command: str
    tasks: tuple[str, ...]
    num_fewshot: int | None = None
    limit: int | None = None
    num_concurrent: int = 64
    tokenizer: str | None = None
    include_path: Path | None = None
    chat: bool = False


@dataclass(frozen=True)
class Score:
    """One metric of one task; `filter` says how an answer was read from the text, as lm-eval names it."""

    model: str
    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None
    num_fewshot: int | None
    num_samples: int | None


def check_command(command: str) -> str:
    """Where the command is.

    Raises:
        BenchError: nowhere.
    """
    if (found := shutil.which(command)) is None:
        raise BenchError(f"there is no command {command!r}: pip install 'lm-eval[api]', or name it by --lm-eval")
    return found


def evaluate(evaluation: Evaluation, url: str, model: str, api_key: str | None = None) -> list[Score]:
    """Let lm-eval ask the server at `url` for `model`, and read its scores. Its output goes where ours does.

    Raises:
        BenchError: lm-eval is not there, or failed.
    """
    if api_key and not (evaluation.tokenizer or evaluation.chat):
        # It takes a key for that from its command line alone, which every user of the machine can read.
        raise BenchError("where keys are asked for, lm-eval cannot ask the server for tokens: name --tokenizer FOLDER")
    command = [check_command(evaluation.command), *arguments(evaluation, url, model)]
    with tempfile.TemporaryDirectory(prefix="atom-lm-eval-") as folder:
        environment = settings.environment_with_openai_key(api_key)
        done = subprocess.run([*command, "--output_path", folder], env=environment)
        files = sorted(Path(folder).rglob("results_*.json"))
        if done.returncode or not files:
            raise BenchError(f"lm-eval ended with {done.returncode} and {len(files)} results; it says why above")
        return list(scores_of(json.loads(files[-1].read_text(encoding="utf-8")), model))


def arguments(evaluation: Evaluation, url: str, model: str) -> list[str]:
    """lm-eval's flags, but for where it writes."""
    kind, path = ("chat-completions", "chat/completions") if evaluation.chat else ("completions", "completions")
    tokenizer = f"tokenizer={evaluation.tokenizer}" if evaluation.tokenizer else "tokenizer_backend=remote"
    asked = [f"model={model}", f"base_url={url.rstrip('/')}/v1/{path}", f"num_concurrent={evaluation.num_concurrent}"]
    # Chats are rendered by the server, and so are completions counted where nothing but text is sent.
    asked += ["max_retries=3", "tokenized_requests=False", *([] if evaluation.chat else [tokenizer])]
    flags = ["--model", f"local-{kind}", "--model_args", ",".join(asked), "--tasks", ",".join(evaluation.tasks)]
    more = {
        "--num_fewshot": evaluation.num_fewshot,
        "--limit": evaluation.limit,
        "--include_path": evaluation.include_path,
    }
    flags += [part for flag, value in more.items() if value is not None for part in (flag, str(value))]
    return [*flags, *(["--apply_chat_template"] if evaluation.chat else [])]


def scores_of(document: Mapping[str, Any], model: str) -> Iterator[Score]:
    """The scores of a file that lm-eval wrote: `"exact_match,strict-match": 0.5` beside its standard error."""
    shots, samples = document.get("n-shot", {}), document.get("n-samples", {})
    for task, entries in document["results"].items():
        for name, value in entries.items():
            metric, mark, filtered = name.partition(",")
            if not mark or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = entries.get(f"{metric}_stderr,{filtered}")
            yield Score(
                *(model, task, metric, filtered, float(value)),
                float(stderr) if isinstance(stderr, int | float) else None,
                shots.get(task),
                samples.get(task, {}).get("effective"),
            )
