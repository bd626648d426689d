"""The time to the first token of a further turn whose blocks left the KV cache: computed again, or loaded."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from typing import Any

from benchmarks import documents, machine, report, tables

BLOCK_SIZE = 16
ANSWER, QUESTION = 8, 32
# What two conversations leave behind, of any model that a host with this command runs.
MEMORY, DISK = "4GiB", "8GiB"
# More than one conversation of SmolLM2, which leaves the cache at once, and less than two: the disk has to be read.
MEMORY_BESIDE_DISK = {"bfloat16": "128MiB", "float16": "128MiB", "float32": "256MiB"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks offload`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096, help="of each conversation before its second turn")
    parser.add_argument("--turns", type=int, default=3, help="further turns of each of two conversations")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; 1 where tokens differ."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    path = machine.model_path(options.model)
    with tempfile.TemporaryDirectory(prefix="atom-offload-") as folder:
        sides: dict[str, dict[str, Any]] = {
            "computed again": {},
            "from memory": {"kv_offload_memory": MEMORY},
            "from the disk": {
                "kv_offload_memory": MEMORY_BESIDE_DISK[options.dtype],
                "kv_offload_folder": folder,
                "kv_offload_disk": DISK,
            },
        }
        interference = machine.Interference([os.getpid()])
        talks = {name: _talk(path, settings, options=options, name=name) for name, settings in sides.items()}
        others = interference.share()
    base = talks["computed again"]
    results = [_summary(name, talk, base) for name, talk in talks.items()]
    settings = documents.flags_of(options, "model", "dtype", "threads", "tokens", "turns")
    document = documents.document_of("offload", options, settings, idle=idle, others=[others], results=results)
    print(tables.offload_table(document))
    report.save_unless_doubtful(document, options)
    return 0 if all(result["same_tokens"] for result in results) else 1


def _talk(path: Any, settings: dict[str, Any], *, options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Turns of two conversations one after the other, of which the cache holds one: all turns but the first two."""
    from atom_core import LLMEngine, SamplingParams

    most = options.tokens + (options.turns + 1) * (ANSWER + QUESTION) + BLOCK_SIZE
    limits = {"max_model_len": most, "num_kv_blocks": -(-most // BLOCK_SIZE) + 1, "max_num_seqs": 1}
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    source = random.Random(0)
    conversations = [[source.randrange(100, 40_000) for _ in range(options.tokens)] for _ in range(2)]
    turns: list[dict[str, Any]] = []
    common = {"dtype": options.dtype, "num_threads": options.threads, "block_size": BLOCK_SIZE, "seed": 0}
    with LLMEngine(str(path), **common, **limits, **settings) as engine:
        for turn in range(options.turns + 1):
            print(f"{name}, turn {turn + 1} ...", file=sys.stderr)
            for token_ids in conversations:
                (output,) = engine.generate([token_ids], params, use_tqdm=False)
                token_ids += output["token_ids"]
                token_ids += [source.randrange(100, 40_000) for _ in range(QUESTION)]
                if turn:
                    turns.append({name: output[name] for name in ("token_ids", "ttft", "num_cached_tokens")})
    return turns


def _summary(name: str, talk: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [turn["ttft"] / other["ttft"] for turn, other in zip(talk, base, strict=True)]
    return {
        "side": name,
        "first_token_ms": [round(1000 * turn["ttft"], 2) for turn in talk],
        "median_ms": round(1000 * statistics.median(turn["ttft"] for turn in talk), 2),
        "cached_tokens": [turn["num_cached_tokens"] for turn in talk],
        "of_computed_again": {
            "median": round(statistics.median(ratios), 4),
            "highest": round(max(ratios), 4),
        },
        "same_tokens": [turn["token_ids"] for turn in talk] == [turn["token_ids"] for turn in base],
    }
