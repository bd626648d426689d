"""Vectors of texts of mixed lengths: our engine beside sentence-transformers, or transformers, in turns."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, timing
from benchmarks.encoder_folders import SHAPES, text_lengths, write_encoder
from benchmarks.encoder_sides import peer_name
from benchmarks.sides import SideProcess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks encoders`."""
    parser.add_argument("--model", default="bge-small", help=f"{', '.join(SHAPES)} (random weights), or a folder")
    parser.add_argument("--layers", type=int, help="fewer layers than the named shape has")
    machine.add_dtype_flag(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=128, help="texts of a step")
    parser.add_argument("--shortest", type=int, default=8, help="tokens of the shortest text")
    parser.add_argument("--longest", type=int, default=256, help="tokens of the longest text")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine")
    parser.add_argument("--steps", type=int, default=2, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    machine.choose_dtype(options)
    idle = machine.idle_share()
    with contextlib.ExitStack() as open_now:
        folder = _folder(options, open_now)
        sides = []
        for name in ("atom", peer_name()):
            sides.append(_open(name, folder, options))
            open_now.callback(sides[-1].close)
        watched = machine.Interference([side.pid for side in sides])
        result = _measure(sides, options)
        others = watched.share()
    names = ("model", "layers", "dtype", "device", "threads", "texts", "shortest", "longest", "turns", "steps")
    settings = documents.flags_of(options, *names)
    document = documents.document_of("encoders", options, settings, idle=idle, others=[others], results=[result])
    if options.device == "cuda":
        document["machine"] |= machine.device()
    print(table(document))
    report.save_unless_doubtful(document, options)
    return 0


def table(document: dict[str, Any]) -> str:
    """A result in markdown, with the facts of the run under it."""
    rows = [("engine", "a step, median", "texts/s", "tokens/s", "ATOM is")]
    settings = document["settings"]
    for result in document["results"]:
        for name, side in result["sides"].items():
            faster = result["times_faster_than"].get(name)
            shown = "" if faster is None else "{median:.2f}x ({lowest_turn:.2f} - {highest_turn:.2f})".format(**faster)
            speeds = f"{side['texts_per_s']:.1f}", f"{side['tokens_per_s']:.0f}"
            rows.append((name, f"{side['median_ms']:.0f} ms", *speeds, shown))
    what = f"{settings['texts']} texts of {settings['shortest']} to {settings['longest']} tokens a step"
    return f"{report.markdown_table(rows)}\n\n{what}, on {settings['device']}; {report.conditions(document)}"


def _folder(options: argparse.Namespace, open_now: contextlib.ExitStack) -> Path:
    """The folder of the model: a given one, or one that is written for this run."""
    shape = SHAPES.get(options.model)
    if shape is None:
        return machine.model_path(options.model)
    folder = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix="atom-encoders-")))
    write_encoder(shape, folder, num_layers=options.layers)
    return folder


def _open(name: str, folder: Path, options: argparse.Namespace) -> SideProcess:
    print(f"loading {options.model} in {name} ...", file=sys.stderr)
    return SideProcess(
        name,
        command=(sys.executable, "-m", "benchmarks.encoder_sides", name),
        environment={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if options.device == "cpu" else None,
        path=str(folder.resolve()),
        dtype=options.dtype,
        threads=options.threads,
        device=options.device,
    )


def _measure(sides: list[SideProcess], options: argparse.Namespace) -> dict[str, Any]:
    texts = {"count": options.texts, "shortest": options.shortest, "longest": options.longest}
    least = _least_cosine(*(side.vectors(**texts | {"count": min(8, options.texts)}) for side in sides))
    for side in sides:
        side.prepare("embedder", **texts)
    timings = timing.interleave(
        {side.name: side.turn for side in sides}, turns=options.turns, steps=options.steps, warm_up=1
    )
    tokens = sum(text_lengths(**texts))
    ours, peer = sides
    return {
        "sides": {
            name: taken.summary()
            | {"texts_per_s": round(options.texts / taken.median, 2), "tokens_per_s": round(tokens / taken.median)}
            for name, taken in timings.items()
        },
        "times_faster_than": {peer.name: timing.ratios(timings[ours.name], timings[peer.name])},
        "least_cosine": least,
    }


def _least_cosine(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """How alike the vectors are of the text in which they differ most; they have length 1."""
    pairs = zip(ours, theirs, strict=True)
    return round(min(sum(a * b for a, b in zip(*pair, strict=True)) for pair in pairs), 6)
