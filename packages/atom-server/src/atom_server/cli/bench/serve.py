"""`atom bench serve`: measures a running server under load."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

from atom_server import settings
from atom_server.bench.charts import check_chart, draw_run
from atom_server.bench.client import BenchError, Client
from atom_server.bench.dataset import Sample, samples_of
from atom_server.bench.metrics import TITLES, summarize, table
from atom_server.bench.serve import run_workload
from atom_server.bench.workload import PATHS, Workload

USAGE = "serve [--base-url URL] [flags]"
DESCRIPTION = """\
Send random prompts, or those of a file, to a running OpenAI-compatible server, at a rate or with so many requests at
once, and print throughput and latencies. Flags and the keys of the result are those of the serving benchmarks of vLLM
and ROCm/ATOM. Charts need matplotlib."""
EXAMPLES = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to send, how fast, and what to tell."""
    parser.add_argument("--backend", default="vllm", choices=("vllm", "openai", "openai-chat"))
    parser.add_argument("--base-url", help="such as http://127.0.0.1:8000; replaces --host and --port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--endpoint", help="path (default: by the backend)")
    parser.add_argument("--model", help="name to ask for (default: what the server serves)")
    parser.add_argument("--api-key", help="default: ATOM_API_KEY")
    parser.add_argument("--dataset-name", default="random", choices=("random", "sharegpt", "custom"))
    parser.add_argument("--dataset-path", type=Path, help="file of sharegpt (JSON) or custom (a prompt on each line)")
    parser.add_argument("--sharegpt-output-len", type=_count, help="tokens of an answer (default: as the dataset has)")
    parser.add_argument("--custom-output-len", type=int, default=256, help="the same; -1 takes output_tokens of a line")
    parser.add_argument("--num-prompts", type=_count, default=1000)
    parser.add_argument("--random-input-len", type=_count, default=1024, help="tokens of a prompt")
    parser.add_argument("--random-output-len", type=_count, default=128, help="tokens of an answer, at most")
    parser.add_argument("--random-range-ratio", type=_share, default=1.0, help="lengths go from this share up to all")
    parser.add_argument("--random-prefix-len", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--request-rate", type=_rate, default=float("inf"), help="requests a second (default: inf)")
    parser.add_argument("--burstiness", type=_rate, default=1.0, help="1 is Poisson; less is more bursty")
    parser.add_argument("--max-concurrency", type=_count, help="requests at once, at most")
    parser.add_argument("--ignore-eos", action="store_true", help="answers of full length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="trace the server meanwhile")
    parser.add_argument("--percentile-metrics", type=_metrics, default="ttft,tpot,itl", help="of ttft, tpot, itl, e2el")
    parser.add_argument("--metric-percentiles", type=_percentiles, default="99", help="such as 50,90,99")
    parser.add_argument("--save-result", action="store_true", help="write the result as JSON")
    parser.add_argument("--result-dir", type=Path, default=Path("."))
    parser.add_argument("--result-filename", help="default: by rate, model and time")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a chart into a .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    """Measure, print, save, draw; 1 where requests failed."""
    if args.plot is not None:
        check_chart(args.plot)
    result = asyncio.run(_measure(args))
    print(table(result, args.percentile_metrics, args.metric_percentiles))
    if args.save_result:
        model = result["model_id"].rsplit("/", 1)[-1]
        name = args.result_filename or f"{args.backend}-{args.request_rate:g}qps-{model}-{result['date']}.json"
        path = args.result_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {path}")
    for error in result["errors"]:
        print(f"failed: {error}")
    return 1 if result["failed"] else 0


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    client = Client(args.base_url or f"http://{args.host}:{args.port}", args.api_key or settings.api_key())
    is_chat = args.backend == "openai-chat"
    model = args.model or (await client.ask("GET", "/v1/models"))["data"][0]["id"]
    if args.dataset_name != "random" and args.dataset_path is None:
        raise BenchError(f"--dataset-name {args.dataset_name} needs --dataset-path")
    workload = Workload(
        samples=await _samples(args, client),
        num_prompts=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        ignore_eos=args.ignore_eos,
        seed=args.seed,
        vocab_size=None if is_chat else await _vocab_size(client),
        is_chat=is_chat,
    )
    outcomes, seconds = await run_workload(
        client,
        workload,
        path=args.endpoint or PATHS[args.backend],
        model=model,
        max_concurrency=args.max_concurrency,
        profile=args.profile,
    )
    about = {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "model_id": model,
        "num_prompts": args.num_prompts,
        "request_rate": args.request_rate if args.request_rate < float("inf") else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    }
    errors = list(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
    result = about | summarize(outcomes, seconds, args.metric_percentiles) | {"errors": errors[:8]}
    if args.plot is not None:
        draw_run(args.plot, outcomes, seconds, result)
        print(f"drawn: {args.plot}")
    return result


async def _samples(args: argparse.Namespace, client: Client) -> list[Sample]:
    if args.dataset_name == "random":
        return []
    custom = args.custom_output_len if args.custom_output_len > 0 else None
    output_len = args.sharegpt_output_len if args.dataset_name == "sharegpt" else custom
    return await samples_of(client, args.dataset_name, args.dataset_path, args.num_prompts, output_len)


async def _vocab_size(client: Client) -> int | None:
    """None where the server does not tell: then prompts are made of words."""
    try:
        return int((await client.ask("GET", "/tokenizer_info"))["vocab_size"])
    except (BenchError, KeyError, TypeError, ValueError):
        return None


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _rate(text: str) -> float:
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
