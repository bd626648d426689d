"""The command `python -m benchmarks gpu`: what is measured, and how the results are put together."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.gpu import tables
from benchmarks.gpu.gains import gains_table
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.served.table import served_table
from benchmarks.gpu.summary import summarize
from benchmarks.gpu.workloads import SCENARIOS

ENGINES = ("atom", "vllm")
# Beyond the longest prompt: what is generated after it.
ROOM_FOR_OUTPUT = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks gpu`."""
    parser.add_argument("scenarios", nargs="*", default=["decode", "prefill", "offline"], metavar="SCENARIO",
                        help=f"what to measure: {', '.join(SCENARIOS)}")  # fmt: skip
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="shape of the model; may be repeated")
    parser.add_argument("--vs", choices=ENGINES[1:], help="engine to measure between two runs of ours")
    parser.add_argument("--once", action="store_true", help="run ours once, not again after the other engine")
    parser.add_argument("--peer-path", help="PYTHONPATH of the other engine, where it is not installed beside ours")
    parser.add_argument("--in-vllm", action="store_true", help="ours is vLLM with atom-vllm; the other is vLLM without")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each scenario, after an untimed one")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128, 256], help="of the decode steps")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024], help="tokens before decoding starts")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 8192], help="tokens of the prefills")
    parser.add_argument("--long-batch-sizes", type=int, nargs="+", default=[1, 8, 32], help="of the long decodes")
    parser.add_argument("--long-contexts", type=int, nargs="+", default=[8192, 32768], help="of the long decodes")
    parser.add_argument("--in-flight", type=int, default=64, help="requests at a time of the closed loop")
    parser.add_argument("--streams", type=int, default=128, help="that are open at a time before a server (served)")
    parser.add_argument(
        "--window", type=float, default=9.0, help="seconds of each of the six parts of a server's load (served)"
    )
    parser.add_argument("--num-layers", type=int, help="layers of the model, where all of them do not fit")
    parser.add_argument(
        "--tensor-parallel-size", "-tp", type=int, default=1, help="GPUs that share each layer, of both"
    )
    parser.add_argument(
        "--enable-expert-parallel", action="store_true", help="each of these GPUs holds whole experts, of both"
    )
    parser.add_argument("--max-model-len", type=int, help="of both engines (default: 16384, or what the sizes need)")
    parser.add_argument(
        "--engine-option", action="append", default=[], metavar="NAME=VALUE", help="setting of our engine"
    )
    parser.add_argument(
        "--peer-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the other engine, such as gdn_prefill_backend=triton",
    )
    parser.add_argument("--variant", action="append", nargs="+", default=[], metavar="NAME=VALUE",
                        help="measure ours with these settings too: level=1, rank_process=true, ...")  # fmt: skip
    parser.add_argument(
        "--cold", action="store_true", help="start each engine with empty caches of compiled code, then with warm ones"
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="that a process of an engine may take")
    parser.add_argument("--logs", type=Path, help="folder for what the engines write on stderr")
    parser.add_argument("--commit", help="of the sources, where this copy of them does not know it")
    parser.add_argument("--append", action="store_true", help="keep the results that the file holds already")
    parser.add_argument("--output", type=Path, help="JSON file (default: under benchmarks/results, by GPU)")


def run(options: argparse.Namespace) -> int:
    """Measure every model, write each figure to the JSON as soon as it is known, print the tables."""
    from benchmarks.gpu.ceilings import measure_ceilings
    from benchmarks.gpu.turns import take_turns

    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        print(f"unknown scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    if "served" in options.scenarios and len(options.scenarios) > 1:
        print("served has a result file of its own: measure it in a call of its own", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _exit)
    options.max_model_len = options.max_model_len or longest_request(options)
    ceilings = measure_ceilings()
    document: dict[str, Any] = {
        "benchmark": _name(options),
        "machine": machine.describe(options.commit) | {"device": ceilings.device},
        "settings": {"dtype": "bfloat16", "max_model_len": options.max_model_len, "repeats": options.repeats}
        | ({"streams": options.streams, "window": options.window} if "served" in options.scenarios else {}),
        "copy_tb_per_s": round(ceilings.copy_bytes_per_second / 1e12, 3),
        "matmul_tflop_per_s": round(ceilings.operations_per_second / 1e12, 1),
        "results": [],
    }
    path = options.output or report.result_path(document)
    before = json.loads(path.read_text()) if options.append and path.exists() else {}
    for model in options.model or ["qwen3-0.6b"]:
        measured: list[dict[str, Any]] = []
        for entry in take_turns(model, options):
            measured.append(entry)
            results, failures = summarize(
                measured, ceilings, num_layers=options.num_layers, num_ranks=options.tensor_parallel_size
            )
            document["results"] = report.merged(before, results, document, by=("model", "figure"))
            document["failures"] = before.get("failures", []) + failures
            report.save(document, path)  # whatever ends this run, what is known is kept
        before = document | {}
    variants = tables.variants_table(document["results"], lambda label: True)
    makers = {"gpu-speculation": gains_table, "gpu-served": served_table}
    table = makers.get(document["benchmark"], tables.gpu_table)(document)
    print("\n\n".join(filter(None, (table, variants))))
    print(f"\nwritten: {path}")
    return 0


def _name(options: argparse.Namespace) -> str:
    """The kind of result: what is measured in other ways than the rest has a file of its own."""
    if options.in_vllm:
        return "gpu-in-vllm"
    apart = {"speculation": "gpu-speculation", "served": "gpu-served", "picture": "gpu-picture"}
    return apart.get(" ".join(options.scenarios), "gpu")


def longest_request(options: argparse.Namespace) -> int:
    """What both engines must take: 16384 tokens, or the longest prompt of the scenarios and what follows it."""
    lengths = [*options.contexts, *options.prompts]
    if "long" in options.scenarios:
        lengths += options.long_contexts
    return max(16384, max(lengths) + ROOM_FOR_OUTPUT)


def _exit(signal_number: int, frame: object) -> None:
    # So that the process of the engine, which holds the GPU, ends as well.
    raise SystemExit(128 + signal_number)
