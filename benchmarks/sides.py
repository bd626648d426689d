"""Engines under measurement, each in a process of its own; this module is also what runs in that process.

Two engines in one process would share OpenMP: with more than one pool of threads libgomp stops spinning at barriers,
and both get slower, by half for many small operators. In processes of their own they run as they do for users, and the
one whose turn it is not sleeps in a read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import timing
from benchmarks.peers import Side, Transformers

# Ours with weights rounded as they load is told by the format: "atom int8"; with layers of transformers, by FALLBACK.
FALLBACK = "atom fallback"
_ROUNDED = (f"atom {name}" for name in ("auto", "int8", "int4", "fp8", "fp8_block", "mxfp4"))
ENGINES = ("atom", "transformers", FALLBACK, *_ROUNDED)


class SideProcess:
    """One engine in its process. It answers one JSON line to each line it is sent.

    Args:
        name: one of `ENGINES`, or what a process of another `command` is called.
        label: what results call it, where that is not its name.
        environment: variables that it has besides ours.
        command: what runs in the process, before its settings; None is this module.
        settings: keywords of `open_side`, or the settings of `command`.
    """

    def __init__(
        self,
        name: str,
        *,
        label: str | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        self.name = label or name
        variables = [f"{variable}={value}" for variable, value in (environment or {}).items()]
        started = [*(command or (sys.executable, "-m", "benchmarks.sides", name)), json.dumps(settings)]
        self._process = subprocess.Popen(
            ["env", *variables, *started] if variables else started,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        self._receive()

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self, kind: str, **scenario: Any) -> None:
        """Get ready for turns of steps that the side's method `kind` makes, such as "decoder" or "prefiller"."""
        self._ask("prepare", kind=kind, scenario=scenario)

    def turn(self, warm_up: int, steps: int) -> list[float]:
        """Seconds of each of `steps` steps, after `warm_up` untimed ones."""
        return self._ask("turn", warm_up=warm_up, steps=steps)

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """See `Side.greedy`."""
        return self._ask("greedy", token_ids=token_ids, num_tokens=num_tokens)

    def vectors(self, **texts: int) -> list[list[float]]:
        """See `benchmarks.encoder_sides`."""
        return self._ask("vectors", **texts)

    def close(self, seconds: float = 60.0) -> None:
        """End the process; it is killed after `seconds`: what it measured is known, and the next side must not wait."""
        with self._process:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _ask(self, what: str, **arguments: Any) -> Any:
        if self._process.stdin is None:
            raise RuntimeError(f"the process of {self.name} was closed")
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"the process of {self.name} ended with {self._process.wait()}; its error is above")
        return json.loads(line)["answer"]


def open_side(
    name: str,
    *,
    path: str,
    dtype: str,
    threads: int,
    max_model_len: int,
    max_num_seqs: int,
    with_text: bool = False,
    tensor_parallel_size: int = 1,
) -> Side:
    """Load `path` in the engine `name`, in this process.

    Args:
        threads: the threads that the engine computes with, or each of its ranks.
        with_text: our engine turns its tokens into text.
        tensor_parallel_size: how many ranks our engine has.
    """
    if name == "transformers":
        return Transformers(Path(path), dtype, threads=threads)
    from benchmarks.engines import Ours

    return Ours(
        Path(path),
        dtype,
        threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        with_text=with_text,
        quantization="none" if name == FALLBACK else name.removeprefix("atom").strip() or "none",
        model_impl="transformers" if name == FALLBACK else "auto",
        tensor_parallel_size=tensor_parallel_size,
        in_use=True,
    )


def main() -> None:
    """Serve one engine over standard input and output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ENGINES)
    parser.add_argument("settings", type=json.loads)
    options = parser.parse_args()
    serve(lambda: open_side(options.name, **options.settings))


def serve(load: Callable[[], Any]) -> None:
    """Answer what a `SideProcess` asks the side that `load` gives, until it has no more questions."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print must not mix with answers
    side = load()

    def answer(value: Any) -> None:
        answers.write(json.dumps({"answer": value}) + "\n")
        answers.flush()

    answer("ready")
    step: timing.Step | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "prepare":
            step = getattr(side, request["kind"])(**request["scenario"])
            answer("ready")
        elif request["what"] == "turn" and step is not None:
            seconds = timing.take_turn(step, request["warm_up"], request["steps"])
            time.sleep(
                max(seconds)
            )  # an engine that runs ahead has a step on its way: it must not run into others' turns
            answer(seconds)
        else:
            answer(getattr(side, request.pop("what"))(**request))
    side.close()


if __name__ == "__main__":
    main()
