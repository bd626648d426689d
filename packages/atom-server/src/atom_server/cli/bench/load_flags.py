"""The flags that say what is sent to a server, and how fast: those of the serving benchmarks of vLLM and ROCm/ATOM."""

from __future__ import annotations

import argparse
from pathlib import Path

from atom_server.bench.backends import BACKENDS
from atom_server.bench.datasets import DATASETS
from atom_server.bench.metrics import TITLES

GOODPUT = ("ttft", "tpot", "e2el")


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """The server, the prompts, the arrivals, and what is told of them."""
    _add_server(parser.add_argument_group("server"))
    _add_datasets(parser.add_argument_group("prompts"))
    load = parser.add_argument_group("load")
    load.add_argument("--num-prompts", type=count, default=1000, help="requests to send (default: %(default)s)")
    load.add_argument("--request-rate", type=rate, default=float("inf"), help="requests a second (default: inf)")
    load.add_argument("--burstiness", type=rate, default=1.0, help="1 is Poisson; less is more bursty")
    load.add_argument("--max-concurrency", type=count, help="requests at once, at most")
    load.add_argument("--ignore-eos", action="store_true", help="answers of full length")
    load.add_argument("--logprobs", type=_not_negative, help="log-probabilities of each token to ask for")
    load.add_argument("--seed", type=int, default=0, help="of prompts and pauses (default: %(default)s)")
    load.add_argument("--profile", action="store_true", help="trace the server meanwhile")
    told = parser.add_argument_group("result")
    told.add_argument("--percentile-metrics", type=_metrics, default="ttft,tpot,itl", help="of ttft, tpot, itl, e2el")
    told.add_argument("--metric-percentiles", type=_percentiles, default="99", help="such as 50,90,99")
    told.add_argument(
        "--goodput",
        type=_limit,
        nargs="+",
        metavar="METRIC:MS",
        help="count requests within limits of ttft, tpot, e2el in milliseconds, such as ttft:100 tpot:50",
    )
    told.add_argument("--label", help="kept in the result (default: the backend)")
    told.add_argument("--metadata", type=_pair, nargs="*", metavar="KEY=VALUE", help="kept in the result")


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backend", default="vllm", choices=tuple(BACKENDS), help="default: %(default)s")
    group.add_argument("--base-url", help="such as http://127.0.0.1:8000; replaces --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="of the server (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="of the server (default: %(default)s)")
    group.add_argument("--endpoint", help="path (default: by the backend, /v1/completions for most)")
    group.add_argument("--model", help="name to ask for (default: what the server serves)")
    group.add_argument("--served-model-name", help="name to ask for, where it is not --model")
    group.add_argument("--api-key", help="default: ATOM_API_KEY")
    group.add_argument(
        "--tokenizer", metavar="FOLDER", help="counts and makes prompts by tokenizer.json there (default: the server's)"
    )


def _add_datasets(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset-name", choices=tuple(DATASETS), help="default: sharegpt with --dataset-path, random without"
    )
    group.add_argument("--dataset-path", type=Path, help="file of the dataset; of hf a folder, or the id of one")
    group.add_argument("--random-input-len", type=count, default=1024, help="tokens of a prompt")
    group.add_argument("--random-output-len", type=count, default=128, help="tokens of an answer, at most")
    group.add_argument("--random-range-ratio", type=_share, default=1.0, help="lengths go from this share up to all")
    group.add_argument("--random-prefix-len", type=_not_negative, default=0, help="tokens that all prompts begin with")
    group.add_argument("--sharegpt-output-len", type=count, help="tokens of an answer (default: as the dataset has)")
    group.add_argument("--custom-output-len", type=int, default=256, help="the same; -1 takes output_tokens of a line")
    group.add_argument("--sonnet-input-len", type=count, default=550, help="tokens of a prompt, about")
    group.add_argument("--sonnet-output-len", type=count, default=150, help="tokens of an answer, at most")
    group.add_argument("--sonnet-prefix-len", type=count, default=200, help="tokens that all begin with, about")
    group.add_argument("--hf-subset", help="the dataset's configuration (default: its own)")
    group.add_argument("--hf-split", help="default: train")
    group.add_argument("--hf-output-len", type=count, help="tokens of an answer (default: 256, or the dataset's)")
    group.add_argument(
        "--use-chat-template", action="store_true", help="render prompts as a user's message, for completions"
    )


def count(text: str) -> int:
    """A number of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _not_negative(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is not at least 0")
    return value


def rate(text: str) -> float:
    """A number above 0."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _share(text: str) -> float:
    if not 0 < (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def _metrics(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in TITLES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(TITLES)}")
    return names


def _percentiles(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if any(not 0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError("percentiles are from 0 to 100")
    return values


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name not in GOODPUT or not value.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no limit such as ttft:100; metrics are {', '.join(GOODPUT)}")
    return name, float(value)


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, value
