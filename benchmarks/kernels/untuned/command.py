"""`python -m benchmarks kernels untuned`: its flags, and the measuring of one case after the other."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from benchmarks import machine, report
from benchmarks.kernels.untuned.shapes import DENSE, MIXTURES, ROWS
from benchmarks.kernels.untuned.table import describe, untuned_table, worst_cases

if TYPE_CHECKING:
    from benchmarks.kernels.untuned.cases import UntunedCase

NAME = "untuned"
OPERATORS = ("linear", "moe_experts")
FORMATS = ("bfloat16", "fp8", "fp8-block", "int4")
_ABOUT = (
    f"`kernels {NAME}` takes linears and experts of shapes that no tuned table has, in an order drawn by a fixed seed, "
    "and says how much slower what the rule chooses for them is than the best that the tuner finds; it stores nothing "
    f"in the tables. `kernels {NAME} linear` and `kernels {NAME} moe_experts` take one of the two. With --append, "
    f"cases that the file holds are not measured again. Rows are {' '.join(map(str, ROWS))} by default."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `untuned` has beside those of `python -m benchmarks kernels`."""
    group = parser.add_argument_group(NAME, _ABOUT)
    group.add_argument("--shape", action="append", choices=(*DENSE, *MIXTURES), help="only this; may be repeated")
    group.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the weights (default: bfloat16)")


def run(options: argparse.Namespace) -> int:
    """Measure every case, print and write the JSON as it goes; 1 if what the rule chooses failed somewhere."""
    import torch

    from benchmarks.kernels.case import in_time
    from benchmarks.kernels.untuned.cases import all_cases

    operators = [name for name in options.operators if name != NAME] or OPERATORS
    if unknown := set(operators).difference(OPERATORS):
        raise SystemExit(f"{NAME} measures {' and '.join(OPERATORS)}, not {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none")
    document = make_document(torch.cuda.get_device_name(), options.commit)
    path = options.output or report.result_path(document)
    before = json.loads(path.read_text()) if options.append and path.exists() else {}
    known = {(result["model"], result["case"]) for result in before.get("results", []) if "failure" not in result}
    results: list[dict[str, Any]] = []
    cases = (
        case
        for case in all_cases(options.shape or [*DENSE, *MIXTURES], options.rows or ROWS, options.format)
        if case.operator in operators and (case.model, case.label) not in known
    )
    for case in in_time(cases, options.seconds):
        found = measure(case)
        results += found
        print(*map(describe, found), sep="\n", flush=True)
        document["results"] = report.merged(before, results, document, by=("operator", "model", "case"))
        report.save(document, path)  # whatever ends this run, what is known is kept
    if results:
        print("\nfurthest from the best:", *worst_cases(document), "", untuned_table(document), "", sep="\n")
        print(f"written: {path}")
    return 1 if any("failure" in result for result in results) else 0


def measure(case: UntunedCase) -> list[dict[str, Any]]:
    """The results of one case; one that cannot run is a finding, and the others still are measured."""
    from benchmarks.kernels.case import give_back_memory
    from benchmarks.kernels.untuned.contest import contest

    try:
        return contest(case)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}".splitlines()[0]
        return [{"operator": case.operator, "model": case.model, "case": case.label, "failure": failure}]
    finally:
        give_back_memory()


def make_document(device: str, commit: str | None = None) -> dict[str, Any]:
    """The JSON document of a run, without results."""
    return {
        "benchmark": NAME,
        "machine": machine.describe(commit) | {"device": device},
        "settings": {"dtype": "bfloat16"},
        "results": [],
    }
