"""Runs outside clients against our server, each in an environment of its own, and prints a table of the results."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from atom_models import resolve_model
from benchmarks import machine
from benchmarks.report import RESULTS, save
from tests.conformance.checkpoint_folder import write_checkpoint_folder
from tests.conformance.environments import EnvironmentUnavailableError, command_of, environment_of
from tests.conformance.results import Result, failures, markdown_table, print_table, record, result_of_run
from tests.conformance.server import running_server
from tests.conformance.suite import Suite, chosen_suites

ROOT = Path(__file__).parents[2]
RECORD = RESULTS / "conformance.json"
MODEL = "smollm2"
# In float32 its numbers can be held against those of other engines; a short context bounds what a client can ask for.
FLAGS = ["--model", MODEL, "--dtype", "float32", "--max-model-len", "1024", "--log-level", "warning"]
SECONDS = 1500
NO_DOWNLOADS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main() -> int:
    """Exits with 0 where every suite passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="these alone, in place of all")
    parser.add_argument("--cache", type=Path, default=ROOT / ".conformance", help="folder of environments and logs")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for atom serve, in one argument")
    parser.add_argument("--skip-unavailable", action="store_true", help="pass where a client cannot be installed")
    parser.add_argument("--list", action="store_true", help="print the suites, as docs/conformance.md has them")
    args = parser.parse_args()
    try:
        suites = chosen_suites(args.suites)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        print(markdown_table(suites))
        return 0
    results = run_all(suites, args.cache.resolve(), [*FLAGS, *shlex.split(args.serve)])
    print_table(results)
    earlier = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    print(f"written: {save(record(results, machine.describe(), earlier), RECORD)}")
    return 1 if failures(results, skip_unavailable=args.skip_unavailable) else 0


def run_all(suites: list[Suite], cache: Path, flags: list[str]) -> list[Result]:
    """Makes every environment first, so that the server does not wait for installers; then runs suite after suite."""
    logs = cache / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    checkpoint = write_checkpoint_folder(resolve_model(MODEL), cache / "checkpoints" / MODEL)
    environments: dict[str, Path | EnvironmentUnavailableError] = {}
    for suite in suites:
        say(f"{suite.name}: environment ...")
        try:
            environments[suite.name] = environment_of(suite, cache / "environments")
        except EnvironmentUnavailableError as error:
            environments[suite.name] = error
            say(f"{suite.name}: {error}")
    results = []
    say("server ...")
    with running_server(flags, logs / "server.log") as url:
        facts = {
            "ATOM_URL": url,
            "ATOM_MODEL": MODEL,
            "ATOM_CHECKPOINT": str(checkpoint),
            "ATOM_PYTHON": sys.executable,
        }
        for suite in suites:
            environment = environments[suite.name]
            if isinstance(environment, Path):
                say(f"{suite.name} ...")
                results.append(run(suite, environment, logs, {**os.environ, **NO_DOWNLOADS, **facts}))
                say(f"{suite.name}: {results[-1].outcome}")
            else:
                results.append(Result(suite, f"UNAVAILABLE: {environment}", False, 0.0, available=False))
    return results


def run(suite: Suite, environment: Path, logs: Path, variables: dict[str, str]) -> Result:
    """Runs a suite; where it fails, what it wrote is shown."""
    log, report = logs / f"{suite.name}.log", logs / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    command = command_of(suite, environment, report)
    start = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=logs)
        try:
            returncode = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            returncode = process.wait()
    result = result_of_run(suite, returncode, report, time.perf_counter() - start)
    if not result.passed:
        print("\n".join(log.read_text(errors="replace").splitlines()[-60:]), file=sys.stderr)
    return result


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
