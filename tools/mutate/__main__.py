"""Put mistakes into the product, one at a time, and see which the tests find.

``python -m tools.mutate --part sampler --sample 60`` tries as many, spread over the files of a part; without ``--part``
as many of each part, without ``--sample`` all. ``--seed 2`` takes another sample. ``--only scheduler.py --kind number``
takes some. A mistake meets the tests that call its function, in the files that its part names, and with ``--all-tests``
in all others too. The nearest files come first, and of a file the quickest tests; ``--longest 60`` ends with so many
seconds of the files that are named, and as many of the others. It lives in the memory of one process: no file is
changed. What survived is written to `.mutations/PART.txt`, and tried once more by
``--again``. The exit status is 1 if any mistake passed all tests that is not listed in the part's `HARMLESS`, with a
reason.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

from tools.mutate.mutation import Mutation
from tools.mutate.parts import PARTS, Part
from tools.mutate.parts.part import PACKAGES
from tools.mutate.report import Outcome, report, survivors_of_last_run
from tools.mutate.sampling import spread


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default=[], nargs="*", choices=tuple(PARTS), help="of all when left out")
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--kind", default=[], nargs="*", help="kinds of mistakes, by the beginning of their names")
    parser.add_argument("--sample", type=int, default=0, help="as many of each part, spread over files")
    parser.add_argument("--seed", type=int, default=0, help="of the sample: another number is another sample")
    parser.add_argument("--again", action="store_true", help="those that survived the last run")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no mistake later: what was not tried is not counted",
    )
    parser.add_argument(
        "--longest", type=float, default=float("inf"), help="seconds of tests of its part, and of others"
    )
    parser.add_argument("--all-tests", action="store_true", help="those that parts do not name, too")
    parser.add_argument("--skip-failing", action="store_true", help="leave out tests that fail without any mistake")
    parser.add_argument("--list", action="store_true", help="only print them")
    options = parser.parse_args(arguments)
    parts = [PARTS[name] for name in options.part or PARTS]
    chosen = {part.name: _choose(part, options) for part in parts}
    if options.list:
        print(*(mutation for mutations in chosen.values() for mutation in mutations), sep="\n")
        return 0
    return report(_try(parts, chosen, options))


def _choose(part: Part, options: argparse.Namespace) -> list[Mutation]:
    kinds = tuple(options.kind) or ""
    wanted = [edit for edit in part.mutations if edit.kind.startswith(kinds) and options.only in edit.file]
    wanted = [edit for edit in wanted if part.reason_of(edit) is None]
    if options.again:
        lots = survivors_of_last_run(part.name)
        wanted = [edit for edit in wanted if edit.lot in lots]
    return spread(wanted, options.sample, seed=options.seed) if options.sample else wanted


def _try(parts: Sequence[Part], chosen: Mapping[str, list[Mutation]], options: argparse.Namespace) -> list[Outcome]:
    """Parts are tried together, in no order, so that what does not fit into the minutes is a sample too."""
    from tools.mutate import forked
    from tools.mutate.measuring import measure
    from tools.mutate.running import try_all

    deadline = time.monotonic() + 60 * options.minutes
    forked.prepare()
    tests_of_file = {path: tests for part in parts for path, tests in part.tests_of_file.items()}
    mutations = sorted((edit for edits in chosen.values() for edit in edits), key=lambda edit: edit.lot)
    test_files = {test for edit in mutations for test in tests_of_file[edit.path]}
    if options.all_tests:
        test_files |= {file for file in PACKAGES.glob("*/tests/**/test_*.py") if not forked.is_interpreted(file)}
    print(f"{len(mutations)} mistakes, {len(test_files)} files of tests", flush=True)
    measured = measure(sorted(test_files), jobs=options.jobs, skip_failing=options.skip_failing)
    limits = {"longest": options.longest, "deadline": deadline}
    trials = try_all(mutations, tests_of_file, measured, jobs=options.jobs, **limits)
    by_mutation = {trial.mutation: trial for trial in trials}
    return [
        Outcome(
            part.name,
            [by_mutation[edit] for edit in chosen[part.name] if edit in by_mutation],
            {test.name for tests in part.tests_of_file.values() for test in tests},
            sum(part.reason_of(edit) is not None for edit in part.mutations),
        )
        for part in parts
        if chosen[part.name]
    ]


if __name__ == "__main__":
    sys.exit(main())
