"""Decode steps of a batch in which each request has one of several adapters, beside the plain model's, in turns."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks import documents, machine, report, timing
from benchmarks.gpu.models import MODELS, write_config
from benchmarks.sides import SideProcess

# The share of a GPU for the first engine; the second one's has the first's in it.
MEMORY_SHARE = 0.42
PLAIN, UNUSED, MIXED = "plain model", "adapters loaded, none used", "an adapter for each request"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks adapters`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, a folder, or a .gguf file")
    parser.add_argument("--shape", choices=sorted(MODELS), help="dummy weights of this shape in place of the model's")
    machine.add_dtype_flag(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument(
        "--modules", nargs="+", help="last names of the linears that have one, such as q_proj v_proj (default: all)"
    )
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[8], help="requests, which take turns at adapters"
    )
    parser.add_argument("--context", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=20, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    limits = {"max_model_len": options.context + 4 * options.steps * (options.turns + 2), "threads": options.threads}
    limits |= {"max_num_seqs": max(options.batch_sizes), "quantization": "auto"}
    limits["load_dummy"] = options.shape is not None
    with contextlib.ExitStack() as open_now:
        folder = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="atom-adapters-")))
        path = write_config(options.shape, folder) if options.shape else machine.model_path(options.model)
        modules = {f"adapter-{one}": str(folder / f"{one}") for one in range(options.adapters)}
        write_adapters(path, list(modules.values()), rank=options.rank, modules=options.modules)
        limits |= {"path": str(path.resolve()), "dtype": options.dtype}
        loaded = {"adapters": modules, "max_lora_rank": options.rank, "memory_share": 2 * MEMORY_SHARE}
        plain = _open(PLAIN, open_now, memory_share=MEMORY_SHARE, **limits)
        mixed = _open(MIXED, open_now, **loaded, **limits)
        interference = machine.Interference([os.getpid(), plain.pid, mixed.pid])
        results = [_measure(size, plain, mixed, list(modules), options=options) for size in options.batch_sizes]
        others = interference.share()
    names = ("model", "shape", "dtype", "threads", "adapters", "rank", "modules", "context", "turns", "steps")
    settings = documents.flags_of(options, *names)
    document = documents.document_of("adapters", options, settings, idle=idle, others=[others], results=results)
    document["machine"] |= machine.device()
    print(table(document))
    report.save_unless_doubtful(document, options)
    return 0


def write_adapters(path: Path, folders: Sequence[str], *, rank: int, modules: Sequence[str] | None = None) -> None:
    """Write an adapter of random numbers for a model into each folder, as PEFT would.

    Args:
        modules: last names of the linears that have one; None is all that take adapters.
    """
    for seed, folder in enumerate(map(Path, folders)):
        source = torch.Generator().manual_seed(seed)
        tensors: dict[str, torch.Tensor] = {}
        for name, (inputs, outputs) in _linears(path).items():
            if modules is None or name.rpartition(".")[2] in modules:
                for matrix, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                    numbers = 0.01 * torch.randn(shape, generator=source)
                    tensors[f"base_model.model.{name}.lora_{matrix}.weight"] = numbers
        folder.mkdir(parents=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
        (folder / "adapter_config.json").write_text(json.dumps(config))


def table(document: dict[str, Any]) -> str:
    """The table of a result in markdown, with the facts of the run under it."""
    rows = [("requests", "side", "step, median", "speed, of the plain model's")]
    for result in document["results"]:
        for name, side in result["sides"].items():
            speed = result["speed"].get(name)
            shown = "" if speed is None else "{median:.2f} ({lowest_turn:.2f} - {highest_turn:.2f})".format(**speed)
            rows.append((str(result["batch_size"]), name, f"{side['median_ms']:.2f} ms", shown))
    settings = document["settings"]
    which = "all linears" if settings["modules"] is None else " ".join(settings["modules"])
    what = f"{settings['adapters']} adapters of rank {settings['rank']} for {which}"
    return f"{report.markdown_table(rows)}\n\n{what}; {report.conditions(document)}"


def _open(name: str, open_now: contextlib.ExitStack, **settings: Any) -> SideProcess:
    side = SideProcess(name, command=(sys.executable, "-m", "benchmarks.engines"), **settings)
    open_now.callback(side.close)
    return side


def _measure(
    batch_size: int, plain: SideProcess, mixed: SideProcess, names: list[str], *, options: argparse.Namespace
) -> dict[str, Any]:
    """Times of decode steps, by side."""
    print(f"measuring {batch_size} requests ...", file=sys.stderr)
    chosen = [names[request % len(names)] for request in range(batch_size)]

    def turn(side: SideProcess, adapters: Sequence[str] | None, warm_up: int, steps: int) -> list[float]:
        side.prepare("decoder", batch_size=batch_size, context=options.context, adapters=adapters)
        return side.turn(warm_up, steps)

    sides = {PLAIN: partial(turn, plain, None), UNUSED: partial(turn, mixed, None), MIXED: partial(turn, mixed, chosen)}
    timings = timing.interleave(sides, turns=options.turns, steps=options.steps)
    return {
        "batch_size": batch_size,
        "sides": {name: taken.summary() for name, taken in timings.items()},
        "speed": {name: timing.ratios(timings[name], timings[PLAIN]) for name in (UNUSED, MIXED)},
    }


def _linears(path: Path) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the linears that take adapters, by name."""
    from atom_models import BuildContext, open_checkpoint
    from atom_models.adapters.loaded import LoadedAdapters
    from atom_models.model import construct_model

    context = BuildContext(takes_adapters=True, max_model_len=16)
    model = construct_model(open_checkpoint(path), context)
    return dict(LoadedAdapters(model, context, max_loras=1, max_rank=1).linears)
