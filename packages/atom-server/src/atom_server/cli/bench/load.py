"""Puts the flags of a load together, sends it, and sums it up."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atom_server import settings
from atom_server.bench.backends import Ask, Backend, make_backend
from atom_server.bench.client import Client
from atom_server.bench.datasets import DatasetOptions, Sample, draw_samples
from atom_server.bench.metrics import summarize
from atom_server.bench.outcome import BenchError, Outcome
from atom_server.bench.prompt_tokens import FolderTokens, PromptTokens, prompt_tokens
from atom_server.bench.serve import run_workload
from atom_server.bench.workload import Workload

# Completions that take token ids in place of a text, where the server tells how many there are.
_TAKE_IDS = ("vllm", "openai", "sglang")


@dataclass(frozen=True)
class Measured:
    """A run: its summary, each request, and the seconds that it took."""

    result: dict[str, Any]
    outcomes: Sequence[Outcome]
    seconds: float


async def measure_load(args: argparse.Namespace) -> Measured:
    """Send what the flags of `add_load_flags` say.

    Raises:
        BenchError: it cannot be sent.
    """
    client = Client(args.base_url or f"http://{args.host}:{args.port}", args.api_key or settings.api_key())
    backend, path = make_backend(args.backend), args.endpoint
    model = args.served_model_name or args.model or await _served_model(client, args.backend)
    tokens = await prompt_tokens(client, args.tokenizer, takes_ids=args.backend in _TAKE_IDS)
    workload = await _workload(args, tokens, model)
    limits = dict(args.goodput or ())
    outcomes, seconds = await run_workload(
        client,
        workload,
        backend,
        path=path or backend.path,
        max_concurrency=args.max_concurrency,
        profile=args.profile,
    )
    count_outputs(outcomes, tokens)
    found = summarize(outcomes, seconds, args.metric_percentiles, goodput=limits)
    errors = list(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
    about = _about(args, backend, model, tokens)
    return Measured(about | found | {"errors": errors[:8]}, outcomes, seconds)


def count_outputs(outcomes: Sequence[Outcome], tokens: PromptTokens) -> None:
    """Count the tokens of answers whose server did not: by the tokenizer that was given, else by their events."""
    for outcome in outcomes:
        if outcome.pieces and not outcome.num_output_tokens:
            is_known = isinstance(tokens, FolderTokens)
            outcome.num_output_tokens = tokens.length("".join(outcome.pieces)) if is_known else len(outcome.pieces)


async def _workload(args: argparse.Namespace, tokens: PromptTokens, model: str | None) -> Workload:
    name = args.dataset_name or ("random" if args.dataset_path is None else "sharegpt")
    options = DatasetOptions(
        name=name,
        path=args.dataset_path,
        num_prompts=args.num_prompts,
        seed=args.seed,
        output_len=_output_len(args, name),
        input_len=args.random_input_len,
        output_len_random=args.random_output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        sonnet_input_len=args.sonnet_input_len,
        sonnet_output_len=args.sonnet_output_len,
        sonnet_prefix_len=args.sonnet_prefix_len,
        hf_subset=args.hf_subset,
        hf_split=args.hf_split,
    )
    samples = await draw_samples(options, tokens)
    [other] = await draw_samples(dataclasses.replace(options, num_prompts=1, seed=args.seed + 1), tokens)
    asks = [await _ask(args, tokens, model, sample) for sample in (other, *samples)]
    return Workload(asks[1:], asks[0], args.request_rate, args.burstiness, args.seed)


async def _ask(args: argparse.Namespace, tokens: PromptTokens, model: str | None, sample: Sample) -> Ask:
    prompt, num_tokens = sample.prompt, sample.num_tokens
    if args.use_chat_template and args.backend != "openai-chat":
        prompt, num_tokens = await tokens.templated(prompt), 0
    if not num_tokens and isinstance(tokens, FolderTokens) and isinstance(prompt, str):
        num_tokens = tokens.length(prompt)
    return Ask(prompt, sample.output_len, num_tokens, model, args.ignore_eos, args.logprobs)


def _output_len(args: argparse.Namespace, name: str) -> int | None:
    if name == "custom":
        return args.custom_output_len if args.custom_output_len > 0 else None
    return {"sharegpt": args.sharegpt_output_len, "hf": args.hf_output_len}.get(name)


async def _served_model(client: Client, backend: str) -> str | None:
    """The first model that the server names. Servers of other protocols serve one, and need no name."""
    try:
        return (await client.ask("GET", "/v1/models"))["data"][0]["id"]
    except (BenchError, KeyError, TypeError, IndexError):
        if backend in ("tgi", "tensorrt-llm", "deepspeed-mii"):
            return None
        raise


def _about(args: argparse.Namespace, backend: Backend, model: str | None, tokens: PromptTokens) -> dict[str, Any]:
    about = {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model or args.backend,
        "tokenizer_id": tokens.name,
        "num_prompts": args.num_prompts,
    }
    return (
        about
        | dict(args.metadata or ())
        | {
            "request_rate": args.request_rate if args.request_rate < float("inf") else "inf",
            "burstiness": args.burstiness,
            "max_concurrency": args.max_concurrency,
        }
    )
