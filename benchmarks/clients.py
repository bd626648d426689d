"""`atom bench serve` beside `vllm bench serve`: two clients of one server, in turns, with the same prompts."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables
from benchmarks.gpu.models import MODELS
from benchmarks.served import dummy_folder
from benchmarks.server_process import Server

COMPARED = ("request_throughput", "output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")
WORDS = ("river", "stone", "light", "winter", "garden", "engine", "paper", "seven", "green", "distance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks clients`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, or a folder; with --shape, whose tokenizer")
    parser.add_argument("--shape", choices=sorted(MODELS), help="dummy weights of this shape in place of the model's")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for atom serve, in one argument")
    parser.add_argument("--vllm", default="vllm", metavar="COMMAND", help="what starts vLLM's command line")
    parser.add_argument("--prompts", type=int, default=48, help="requests of a turn")
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--words", type=int, default=128, help="of each prompt")
    parser.add_argument("--tokens-out", type=int, default=64, help="of each answer")
    parser.add_argument("--turns", type=int, default=5, help="turns of each client")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    idle = machine.idle_share()
    source = machine.model_path(options.model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # A prompt that came before must cost the other client as much.
        flags = [*shlex.split(options.serve), "--no-enable-prefix-caching"]
        if options.shape:
            source = dummy_folder(options.shape, source, folder)
            flags.append("--load-dummy")
        prompts = write_prompts(folder / "prompts.jsonl", options.prompts, options.words)
        server = Server(source, flags, start_seconds=300.0)
        try:
            taken = {}
            for at_a_time in options.at_a_time:
                commands = client_commands(server.port, source, prompts, at_a_time=at_a_time, options=options)
                taken[at_a_time] = take_turns(commands, folder, options.turns)
        finally:
            server.close()
    settings = documents.flags_of(options, "model", "shape", "serve", "prompts", "words", "tokens_out")
    results = [
        {"at_a_time": at_a_time} | compared(metric, turns) for at_a_time, turns in taken.items() for metric in COMPARED
    ]
    document = documents.document_of("clients", options, settings, idle=idle, others=[], results=results)
    document["machine"] |= machine.device()
    print(tables.clients_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def write_prompts(path: Path, number: int, words: int) -> Path:
    """A file of prompts that begin differently, in the form that both clients read."""
    source = random.Random(0)
    lines = [{"prompt": f"{index} " + " ".join(source.choices(WORDS, k=words))} for index in range(number)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def client_commands(
    port: int, model: Path, prompts: Path, *, at_a_time: int, options: argparse.Namespace
) -> dict[str, list[str]]:
    """What starts each client, with flags that mean the same to both."""
    same = ["--base-url", f"http://127.0.0.1:{port}", "--endpoint", "/v1/completions", "--ignore-eos"]
    same += ["--dataset-name", "custom", "--dataset-path", str(prompts)]
    same += ["--custom-output-len", str(options.tokens_out), "--num-prompts", str(options.prompts)]
    same += ["--max-concurrency", str(at_a_time), "--tokenizer", str(model), "--save-result"]
    theirs = ["--backend", "openai", "--skip-chat-template", "--model", str(model), "--served-model-name", model.name]
    return {
        "atom": [sys.executable, "-m", "atom_server", "bench", "serve", *same],
        "vllm": [*shlex.split(options.vllm), "bench", "serve", *same, *theirs],
    }


def take_turns(commands: dict[str, list[str]], folder: Path, turns: int) -> list[dict[str, dict[str, Any]]]:
    """What each client found in each turn. The first of a turn is the last of the next; one turn before is thrown away.

    Raises:
        RuntimeError: a client failed, or lost a request.
    """
    found = []
    for turn in range(turns + 1):
        print(f"turn {turn} of {turns} ...", file=sys.stderr)
        names = list(commands) if turn % 2 else list(reversed(commands))
        found.append({name: _ask(name, commands[name], folder) for name in names})
    return found[1:]


def _ask(name: str, command: list[str], folder: Path) -> dict[str, Any]:
    place = ["--result-dir", str(folder), "--result-filename", f"{name}.json"]
    done = subprocess.run([*command, *place], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the client {name} failed:\n{done.stderr[-3000:]}")
    result = json.loads((folder / f"{name}.json").read_text())
    if result.get("failed"):
        raise RuntimeError(f"the client {name} lost {result['failed']} requests:\n{done.stdout[-3000:]}")
    return result


def compared(metric: str, turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians of a metric by client, and the ratio of ours to theirs: of the medians, and turn by turn."""
    values = {name: [turn[name][metric] for turn in turns] for name in ("atom", "vllm")}
    medians = {name: statistics.median(found) for name, found in values.items()}
    ratios = [ours / theirs for ours, theirs in zip(values["atom"], values["vllm"], strict=True)]
    return {
        "metric": metric,
        "clients": {name: round(median, 3) for name, median in medians.items()},
        "ratio": {
            "of_medians": round(medians["atom"] / medians["vllm"], 4),
            "lowest_turn": round(min(ratios), 4),
            "highest_turn": round(max(ratios), 4),
        },
    }
