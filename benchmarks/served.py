"""A served model under load: `atom serve` in its process, `atom bench serve` in another, run by run."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine, report, tables
from benchmarks.gpu.models import MODELS
from benchmarks.server_process import Server

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
KEPT = (
    *("completed", "failed", "duration", "output_throughput"),
    *("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks served`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, or a folder; with --shape, whose tokenizer")
    parser.add_argument("--shape", choices=sorted(MODELS), help="dummy weights of this shape in place of the model's")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for atom serve, in one argument")
    parser.add_argument(
        "--load",
        action="append",
        type=_load,
        metavar="PROMPTS,AT_A_TIME,IN,OUT",
        help="requests, how many at once, tokens of a prompt and of an answer (default: 64,32,512,128)",
    )
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    source = machine.model_path(options.model)
    with tempfile.TemporaryDirectory() as scratch:
        flags = shlex.split(options.serve)
        if options.shape:
            source = dummy_folder(options.shape, source, Path(scratch))
            flags.append("--load-dummy")
        server = Server(source, flags, start_seconds=300.0)
        try:
            results = [_measure(server.port, load, Path(scratch)) for load in options.load or [_load("64,32,512,128")]]
        finally:
            server.close()
    document = {
        "benchmark": "served",
        "machine": machine.describe(options.commit) | machine.device(),
        "settings": {
            "model": options.shape or Path(options.model).name,
            "dummy": bool(options.shape),
            "flags": options.serve,
        },
        "results": results,
    }
    print(tables.served_table(document))
    if not options.no_save:
        print(f"\nwritten: {report.save(document, options.output)}")
    return 0


def dummy_folder(shape: str, tokenizer: Path, folder: Path) -> Path:
    """A checkpoint without weights: the layers of `shape`, and the vocabulary of `tokenizer`, a folder."""
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)
    theirs = json.loads((tokenizer / "config.json").read_text())
    of_tokenizer = {name: theirs[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    (folder / "config.json").write_text(json.dumps(MODELS[shape] | of_tokenizer))
    return folder


def _measure(port: int, load: dict[str, int], folder: Path) -> dict[str, Any]:
    """One run of `atom bench serve`: the load, and what came of it."""
    flags = ["--port", str(port), "--dataset-name", "random", "--ignore-eos", "--save-result"]
    flags += ["--num-prompts", str(load["prompts"]), "--max-concurrency", str(load["at_a_time"])]
    flags += ["--random-input-len", str(load["tokens_in"]), "--random-output-len", str(load["tokens_out"])]
    flags += ["--result-dir", str(folder), "--result-filename", "run.json"]
    subprocess.run([sys.executable, "-m", "atom_server", "bench", "serve", *flags], check=True)
    found = json.loads((folder / "run.json").read_text())
    return load | {name: round(found[name], 3) for name in KEPT}


def _load(text: str) -> dict[str, int]:
    names = ("prompts", "at_a_time", "tokens_in", "tokens_out")
    values = text.split(",")
    if len(values) != len(names) or not all(value.isdigit() and int(value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not four numbers, such as 64,32,512,128")
    return dict(zip(names, map(int, values), strict=True))
