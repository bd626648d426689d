"""What grammars cost in a step: masks of a batch over a real vocabulary, by each library, and their use on logits."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import documents, machine, report
from benchmarks.mask_steps import measure_added
from benchmarks.timing import take_turn

if TYPE_CHECKING:
    from atom_core.structured_output import Matcher
    from atom_core.tokenization import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog and runs away from home to find a good place to sleep "
ANSWER = {"name": TEXT[:40], "age": 36, "tags": ["maths", "engines"], "home": {"street": "St James", "zip": 12345}}
HOME = {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "integer", "minimum": 0}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {**HOME, "required": ["street", "zip"], "additionalProperties": False},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
TAGS = {
    "structures": [{"begin": f"<call={name}>", "schema": SCHEMA, "end": "</call>"} for name in "abcdefgh"],
    "triggers": ["<call="],
}
Cases = dict[str, tuple[dict[str, Any], str]]
"""A constraint by its name, and a text that follows it."""

CASES: Cases = {
    "JSON schema": ({"json": SCHEMA}, json.dumps(ANSWER)),
    "any JSON object": ({"json_object": True}, json.dumps(ANSWER)),
    "8 tools, free text": ({"structural_tag": TAGS}, f"{TEXT}<call=c>{json.dumps(ANSWER)}</call>{TEXT}"),
    "500 choices": ({"choice": [f"word number {number}" for number in range(500)]}, "word number 321"),
    "maxItems 100": ({"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 100}}, str([*range(50)])),
    "maxLength 400": ({"json": {"type": "string", "maxLength": 400}}, json.dumps(TEXT * 2)),
    "pattern {1,400}": ({"json": {"type": "string", "pattern": "^[a-z ]{1,400}$"}}, json.dumps(TEXT * 2)),
    "[a-z ]{1,400}": ({"regex": "[a-z ]{1,400}"}, TEXT * 2),
    ".{1,400}": ({"regex": ".{1,400}"}, TEXT * 2),
    "([a-z]+ ){1,400}": ({"regex": "([a-z]+ ){1,400}"}, TEXT * 2),
    "([a-z]+, ){1,400}": ({"regex": "([a-z]+, ){1,400}"}, TEXT.replace(" ", ", ") * 2),
    "words in Lark": ({"grammar": 'start: word{1,400}\nword: /[a-z]+/ " "'}, TEXT * 2),
    "words in JSON": ({"json": {"type": "string", "pattern": "^([a-z]+ ){1,400}$"}}, json.dumps(TEXT * 2)),
    "date and words": ({"regex": r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]+)+"}, f"2031-05-17 {TEXT}".strip()),
}
# Stop measuring a case that is this slow.
MOST_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks masks`."""
    parser.add_argument("--model", default="smollm2", help="whose vocabulary")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--only", nargs="+", metavar="KIND", help="of these kinds")
    parser.add_argument(
        "--decode-steps",
        type=int,
        default=0,
        help="time so many steps of the model a turn instead",
    )
    parser.add_argument("--turns", type=int, default=4, help="turns with a grammar, and as many without")
    parser.add_argument("--num-threads", type=int, help="threads that compute; unset takes all cores")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print a line for each kind of grammar (and library), write the JSON; milliseconds of the whole batch."""
    cases = {name: case for name, case in CASES.items() if not options.only or name in options.only}
    idle, watched = machine.idle_share(), machine.Interference()
    if options.decode_steps:
        # In a process that has computed nothing before: threads that torch left here would slow the engine's.
        constraints = {name: constraint for name, (constraint, _) in cases.items()}
        benchmark, results = "mask-steps", list(measure_added(constraints, options))
    else:
        benchmark, results = "masks", _measure_libraries(cases, options)
    settings = documents.flags_of(options, "model", "batch_size", "turns")
    document = documents.document_of(benchmark, options, settings, idle=idle, others=[watched.share()], results=results)
    report.save_unless_doubtful(document, options)
    return 0


def _measure_libraries(cases: Cases, options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from atom_core.tokenization import Tokenizer
    from atom_models import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model(options.model))
    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    vocab_size = int(checkpoint.config["vocab_size"])
    libraries = _Libraries(tokenizer, vocab_size, checkpoint.eos_token_ids)
    print(f"{options.model}: {vocab_size} tokens, batch {options.batch_size}; ms, * marks what auto takes")
    results: list[dict[str, Any]] = []
    for name, (constraint, text) in cases.items():
        results += libraries.measure(name, constraint, text, options.batch_size)
    used = use_masks(torch.randn(options.batch_size, vocab_size))
    print(f"using masks on logits: median {used:.2f}")
    return [*results, {"grammar": "using masks on logits", "median_ms": round(used, 3)}]


class _Libraries:
    """The libraries that follow grammars, on one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        from atom_core import StructuredOutputParams
        from atom_core.structured_output import Compilers
        from atom_core.structured_output.constraints.choice import has_xgrammar

        self._tokenizer, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._compilers = Compilers(tokenizer, vocab_size, eos_token_ids)
        self._names = ["llguidance", "xgrammar"] if has_xgrammar() else ["llguidance"]
        for library in self._names:  # they are imported and vocabularies read with the first grammar
            self._compilers.submit(library, StructuredOutputParams(choice=["a"])).grammar.result()

    def measure(self, name: str, constraint: dict[str, Any], text: str, batch_size: int) -> Iterator[dict[str, Any]]:
        """A result for each library that takes the constraint, printed as it comes."""
        from atom_core import StructuredOutputParams
        from atom_core.structured_output import GrammarError, Matcher
        from atom_core.structured_output.constraints.choice import choose

        params = StructuredOutputParams(**constraint)
        (chosen, *_), _ = choose(params, "auto", "xgrammar" in self._names)
        for library in self._names:
            label = f"{name:20s} {library + '*' if library == chosen else library:12s}"
            started = time.perf_counter()
            try:
                grammar = self._compilers.submit(library, params).grammar.result()
            except GrammarError as error:
                print(f"{label} {str(error)[:60]}")
                continue
            compiled = 1e3 * (time.perf_counter() - started)
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            batch = [Matcher(grammar.start(), self._vocab_size, self._eos_token_ids) for _ in range(batch_size)]
            times = [1e3 * seconds for seconds in make_masks(batch, token_ids)]
            median, mean, most = statistics.median(times), statistics.mean(times), max(times)
            print(f"{label} compiled in {compiled:8.1f}; masks: median {median:.2f}, mean {mean:.2f}, most {most:.2f}")
            found = {"compiled_ms": compiled, "median_ms": median, "mean_ms": mean, "most_ms": most}
            rounded = {key: round(value, 3) for key, value in found.items()}
            yield {"grammar": name, "library": library, "chosen": library == chosen} | rounded


def make_masks(batch: list[Matcher], token_ids: list[int]) -> Iterator[float]:
    """Seconds of each step that has a full batch; each text is a few tokens behind the one before it."""
    lag = max(1, min(3, len(token_ids) // (2 * len(batch))))
    spent = 0.0
    for step in range(len(token_ids) + lag * (len(batch) - 1)):
        rows = [(row, step - lag * index) for index, row in enumerate(batch)]
        rows = [(row, place) for row, place in rows if 0 <= place < len(token_ids)]
        started = time.perf_counter()
        for row, _ in rows:
            row.mask()
        for row, place in rows:
            row.accept([token_ids[place]])
        seconds = time.perf_counter() - started
        spent += seconds
        if len(rows) >= min(len(batch), len(token_ids) // lag):
            yield seconds
        if spent > MOST_SECONDS:
            return


def use_masks(logits: Any) -> float:
    """Milliseconds that the sampler takes to apply a batch of masks."""
    import numpy as np

    from atom_core.worker.sampling.token_masks import words_of_masks
    from atom_kernels.sampling import BAN_TOKENS, BanProblem
    from atom_kernels.select import select

    num_rows, vocab_size = logits.shape
    source = np.random.default_rng(0)  # bits in a pattern would be foretold by the processor
    masks = list(source.integers(-(2**31), 2**31, (num_rows, -(-vocab_size // 32)), dtype=np.int32))
    ban_tokens = select(BAN_TOKENS, BanProblem(vocab_size)).prepare()

    def apply() -> None:
        ban_tokens(logits, words_of_masks(masks, vocab_size, logits.device))

    return 1e3 * statistics.median(take_turn(apply, 2, 20))
