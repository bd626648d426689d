"""The command line of `python -m benchmarks kernels`, and the measuring of one case after the other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from benchmarks.kernels import untuned
from benchmarks.kernels.shapes import DELTA_NETS, MODELS, SPARSE_ATTENTION
from benchmarks.kernels.table import kernels_table, torch_ratio

if TYPE_CHECKING:
    from benchmarks.gpu.ceilings import Ceilings
    from benchmarks.kernels.case import Call, KernelCase

ROWS = (1, 32, 128, 2048)
ALL_MODELS = (*MODELS, *SPARSE_ATTENTION, *DELTA_NETS)
# Operators whose cases say by their label alone what they are.
NAMED_BY_SIZE = ("rms_norm", "add_rms_norm", "gated_activation", "sample")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks kernels`."""
    only = f"only these, e.g. linear attention; or {untuned.NAME}, see below"
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help=only)
    parser.add_argument("--model", action="append", choices=ALL_MODELS, help="only these shapes; may be repeated")
    parser.add_argument("--rows", type=int, nargs="+", help=f"tokens of a call (default: {' '.join(map(str, ROWS))})")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop before a case once so much time has passed")
    parser.add_argument("--append", action="store_true", help="keep the results that the file holds already")
    parser.add_argument("--commit", help="of the sources, where this copy of them does not know it")
    parser.add_argument("--output", type=Path, help="JSON file (default: under benchmarks/results, by GPU)")
    untuned.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure every case, print and write the JSON as it goes; 1 if a kernel failed."""
    if untuned.NAME in options.operators:
        return untuned.run(options)
    import torch

    from benchmarks.gpu.ceilings import measure_ceilings
    from benchmarks.kernels.case import in_time

    ceilings = measure_ceilings()
    torch.manual_seed(0)
    document = make_document([], ceilings)
    document["machine"] |= {"commit": options.commit} if options.commit else {}
    path = options.output or report.result_path(document)
    before = json.loads(path.read_text()) if options.append and path.exists() else {}
    results: list[dict[str, Any]] = []
    cases = all_cases(options.model or list(ALL_MODELS), tuple(options.rows or ROWS))
    wanted = (case for case in cases if not options.operators or case.operator in options.operators)
    with torch.inference_mode():
        for case in in_time(wanted, options.seconds):
            results.append(measure(case, ceilings))
            print(describe(results[-1]), flush=True)
            found = report.merged(before, results, document, by=("operator", "model", "case"))
            document["results"] = by_model(found)
            report.save(document, path)  # whatever ends this run, what is known is kept
    print("\n" + kernels_table(document))
    print(f"\nwritten: {path}")
    return 1 if any("failure" in result for result in results) else 0


def all_cases(models: list[str], rows: tuple[int, ...]) -> Iterator[KernelCase]:
    """Each operator at each model's shapes, those that several models share under the first.

    What takes most of a step comes first, of all models, since a run may stop early.
    """
    from benchmarks.kernels import attention, delta, dense, mixture, sampling, sparse

    for model in models:
        if model in DELTA_NETS:
            yield from delta.cases(model, DELTA_NETS[model], rows)
        if model in SPARSE_ATTENTION:
            yield from sparse.cases(model, SPARSE_ATTENTION[model], rows)
    models = [name for name in models if name in MODELS]
    for model in models:
        yield from attention.cases(model, MODELS[model])
    for model in models:
        yield from mixture.cases(model, MODELS[model], rows)
    seen: set[tuple[str, str]] = set()
    for cases in (dense.cases, sampling.cases):
        for model in models:
            for case in cases(model, MODELS[model], rows):
                key = (case.operator, case.label)
                if case.operator not in NAMED_BY_SIZE or key not in seen:
                    yield case
                seen.add(key)


def by_model(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results in the order of their models."""
    return sorted(results, key=lambda result: ALL_MODELS.index(result["model"]))


def measure(case: KernelCase, ceilings: Ceilings) -> dict[str, Any]:
    """One case as JSON values; a kernel that cannot run is a finding, and the others still are measured."""
    from atom_kernels.tuned.graph_timing import graph_seconds
    from benchmarks.kernels.case import give_back_memory

    result = {"operator": case.operator, "model": case.model, "case": case.label}
    try:
        sides = case.build()
        backend, seconds = sides.backend, graph_seconds(sides.ours)
        beside = _time_torch(sides.torch)
    except Exception as error:
        return result | {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
    finally:
        sides = None
        give_back_memory()
    return result | {
        "backend": backend,
        "us": round(1e6 * seconds, 2),
        "copy_share": round(case.work.num_bytes / seconds / ceilings.copy_bytes_per_second, 3),
        "matmul_share": round(case.work.flops / seconds / ceilings.operations_per_second, 3),
        **beside,
    }


def _time_torch(calls: Sequence[Call] | None) -> dict[str, Any]:
    """What torch takes; where it needs more memory than there is, that is a finding too."""
    import torch

    from atom_kernels.tuned.graph_timing import graph_seconds

    try:
        return {"torch_us": round(1e6 * graph_seconds(calls), 2) if calls else None}
    except torch.OutOfMemoryError:
        return {"torch_us": None, "torch_failure": "out of memory"}


def make_document(results: list[dict[str, Any]], ceilings: Ceilings) -> dict[str, Any]:
    """The JSON document of a run."""
    return {
        "benchmark": "kernels",
        "machine": machine.describe() | {"device": ceilings.device},
        "settings": {"dtype": "bfloat16"},
        "copy_tb_per_s": round(ceilings.copy_bytes_per_second / 1e12, 3),
        "matmul_tflop_per_s": round(ceilings.operations_per_second / 1e12, 1),
        "results": results,
    }


def describe(result: dict[str, Any]) -> str:
    """One line about a case."""
    start = f"{result['operator']:<17}{result['model']:<17}{result['case']:<44}"
    if "failure" in result:
        return start + "FAILED " + result["failure"]
    shares = f"{result['copy_share']:5.0%} of copy {result['matmul_share']:5.0%} of matmul"
    return f"{start}{result['us']:10.1f} us {shares} {torch_ratio(result):<20}  {result['backend']}"
