"""The part of `atom bench accuracy` that asks a server the questions of lm-eval's tasks."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atom_server import settings
from atom_server.bench.origin import origin
from atom_server.bench.outcome import BenchError
from atom_server.bench.saved_results import save_json
from atom_server.bench.tasks.evaluation import Evaluation, Score, check_command, evaluate
from atom_server.cli.bench.load_flags import count
from atom_server.cli.columns import columns

_TITLES = ("task", "metric", "read by", "value", "stderr", "shots", "questions")


def add_task_flags(group: argparse._ArgumentGroup) -> None:
    """Which tasks, how, and of which server."""
    group.add_argument("--tasks", nargs="+", metavar="TASK", help="of lm-eval, such as gsm8k, in the place of --text")
    group.add_argument("--base-url", metavar="URL", help="a running server (default: one that is started for --model)")
    group.add_argument("--num-fewshot", "--num_fewshot", type=int, metavar="N", help="examples before each question")
    group.add_argument("--limit", type=count, metavar="N", help="questions of each task (default: all)")
    group.add_argument("--num-concurrent", type=count, default=64, metavar="N", help="at once (default: %(default)s)")
    group.add_argument("--chat", action="store_true", help="ask by chats (default: by completions)")
    group.add_argument("--tokenizer", metavar="FOLDER", help="counts tokens (default: the server's)")
    group.add_argument("--include-path", "--include_path", type=Path, metavar="DIR", help="tasks of your own")
    group.add_argument("--lm-eval", default="lm_eval", metavar="COMMAND", help="default: %(default)s")


def run_tasks(args: argparse.Namespace) -> int:
    """Ask, print, save.

    Raises:
        BenchError: there is no lm-eval, no server, or a flag that means nothing here.
    """
    if args.against is not None or len(args.quantization or ()) > 1:
        raise BenchError("tasks measure one model in one format: leave out --against, and name one --quantization")
    if args.base_url and (args.quantization or args.dtype or args.kv_cache_dtype != "auto"):
        raise BenchError(
            "--base-url names a server that runs already: --quantization, --kv-cache-dtype and --dtype are its own"
        )
    check_command(args.lm_eval)
    evaluation = Evaluation(
        command=args.lm_eval,
        tasks=tuple(args.tasks),
        num_fewshot=args.num_fewshot,
        limit=args.limit,
        num_concurrent=args.num_concurrent,
        tokenizer=args.tokenizer,
        include_path=args.include_path,
        chat=args.chat,
    )
    key = settings.api_key()
    with _server(args) as url:
        scores = evaluate(evaluation, url, _served_model(url, key), key)
    print("\n".join(columns([_TITLES, *map(_cells, scores)])))
    if args.json is not None:
        print(f"written: {save_json(args.json, _document(args, scores))}")
    return 0


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    if args.base_url:
        yield args.base_url.rstrip("/")
        return
    from atom_server.bench.tasks.own_server import own_server

    flags = ["--model", args.model, "--kv-cache-dtype", args.kv_cache_dtype]
    flags += ["--quantization", *args.quantization] if args.quantization else []
    flags += ["--dtype", args.dtype] if args.dtype else []
    print(f"starting a server of {args.model}", flush=True)
    with own_server(flags) as url:
        yield url


def _served_model(url: str, key: str | None) -> str:
    # A fifth of a second to import, which no other command waits for.
    import httpx

    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"{url}/v1/models", headers=headers).raise_for_status().json()["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise BenchError(f"{url} does not say which model it serves: {type(error).__name__}: {error}") from None


def _document(args: argparse.Namespace, scores: Sequence[Score]) -> dict[str, Any]:
    own = {} if args.base_url else {
        "quantization": (args.quantization or ["stored"])[0],
        "kv_cache_dtype": args.kv_cache_dtype,
    }  # fmt: skip
    about = {"benchmark": "tasks", "limit": args.limit, "machine": origin(args.commit)}
    return about | {"results": [own | asdict(score) for score in scores]}


def _cells(score: Score) -> tuple[str, ...]:
    stderr = "" if score.stderr is None else f"{score.stderr:.4f}"
    counts = ("" if number is None else str(number) for number in (score.num_fewshot, score.num_samples))
    return (score.task, score.metric, score.filter, f"{score.value:.4f}", stderr, *counts)
