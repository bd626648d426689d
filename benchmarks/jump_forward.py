"""What it saves not to sample tokens that a grammar leaves no choice about: steps and seconds of real schemas."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

WEATHER = {
    "location": {"type": "string", "maxLength": 30},
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "forecast_days": {"type": "integer", "minimum": 1, "maximum": 14},
    "include_humidity": {"type": "boolean"},
}
NAME = {"type": "string", "maxLength": 20}
ITEM = {
    "product_name": NAME,
    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    "unit_price": {"type": "number", "minimum": 0, "maximum": 1000},
}
CUSTOMER = {"first_name": NAME, "last_name": NAME, "email_address": {"type": "string", "maxLength": 40}}


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """A schema whose properties are all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS = {
    "weather call": object_of(WEATHER),
    "person": object_of({"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "city": NAME}),
    "order": object_of(
        {
            "order_id": {"type": "string", "pattern": "^ORD-[0-9]{6}$"},
            "customer": object_of(CUSTOMER),
            "items": {"type": "array", "items": object_of(ITEM), "minItems": 1, "maxItems": 3},
            "status": {"enum": ["pending", "shipped", "delivered"]},
        }
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks jump`."""
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-threads", type=int, help="threads that compute; unset takes all cores")


def run(options: argparse.Namespace) -> int:
    """Print a line for each schema; the texts with and without are compared."""
    from atom_core import LLMEngine

    results: dict[bool, dict[str, tuple[list[str], int, float]]] = {}
    limits = {"max_num_seqs": options.batch_size, "max_model_len": 1024, "num_threads": options.num_threads}
    for jumps in (False, True):
        with LLMEngine(options.model, jump_forward=jumps, **limits) as engine:
            steps = _StepCounter(engine)
            results[jumps] = {name: _measure(engine, steps, schema, options) for name, schema in SCHEMAS.items()}
    print(f"{options.model}, batch {options.batch_size}, greedy: without -> with jump-forward")
    for name in SCHEMAS:
        (texts, steps_before, before), (jumped, steps_after, after) = results[False][name], results[True][name]
        same = "the same texts" if texts == jumped else "TEXTS DIFFER"
        print(f"{name:14s} steps {steps_before} -> {steps_after}; seconds {before:.2f} -> {after:.2f}; {same}")
    return 0


class _StepCounter:
    """Counts the steps that an engine submits."""

    def __init__(self, engine: Any) -> None:
        self.count = 0
        executor = engine._core._executor
        self._submit, executor.submit = executor.submit, self._counted

    def _counted(self, step: Any) -> Any:
        self.count += 1
        return self._submit(step)


def _measure(
    engine: Any, steps: _StepCounter, schema: dict[str, Any], options: argparse.Namespace
) -> tuple[list[str], int, float]:
    """Texts, steps and the median time of a batch."""
    from atom_core import SamplingParams, StructuredOutputParams

    params = SamplingParams(temperature=0.0, max_tokens=300, structured_outputs=StructuredOutputParams(json=schema))
    prompts = [f"Write record number {number} as JSON: " for number in range(options.batch_size)]
    engine.generate(prompts, params, use_tqdm=False)  # compiles the grammar
    seconds: list[float] = []
    texts: list[str] = []
    for _ in range(options.rounds):
        steps.count = 0
        started = time.perf_counter()
        texts = [output["text"] for output in engine.generate(prompts, params, use_tqdm=False)]
        seconds.append(time.perf_counter() - started)
    return texts, steps.count, statistics.median(seconds)
