"""What speculation saves, and what it costs where it can save nothing: tokens a second with and without, in turns."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks import documents, machine, report, tables

LIST = "\n".join(f"def get_{name}(self) -> int:\n    return self._{name}\n" for name in ("width", "height", "weight"))
# What a model goes on with is much of what it has read, or nothing of it.
TEXTS = {
    "repeating": f"Here is a Python class. I repeat it twice, word for word.\n\n{LIST}\nAgain:\n\n{LIST}\nAgain:\n\n",
    "not repeating": "Dear diary, of all days since we left the harbour this one was the strangest, because",
}
_TEMPERATURES = {"repeating": 0.0, "not repeating": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks speculation`."""
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--method", choices=("ngram", "suffix"), default="ngram")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-threads", type=int, help="threads that compute; unset takes all cores")
    parser.add_argument("--kv-cache-memory", default="1GiB")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Print and save a result for each text and batch size; tokens with and without are compared."""
    from atom_core import LLMEngine

    common = {"num_threads": options.num_threads, "seed": 0}
    common |= {"max_num_seqs": max(options.batch_sizes), "kv_cache_memory": options.kv_cache_memory}
    drafting = {"method": options.method, "num_speculative_tokens": options.num_speculative_tokens}
    idle, watched = machine.idle_share(), machine.Interference()
    results = []
    with LLMEngine(options.model, **common) as plain, LLMEngine(options.model, **common, **drafting) as drafts:
        settings = {"model": plain.info.model, "dtype": plain.info.dtype, "threads": plain.info.num_threads}
        for batch_size in options.batch_sizes:
            for name in options.texts:
                results.append(_compare(name, batch_size, (plain, drafts), options))
                print(" | ".join(tables.speculation_row(results[-1])), flush=True)
    settings |= documents.flags_of(options, "method", "num_speculative_tokens", "rounds")
    document = documents.document_of(
        "speculation", options, settings, idle=idle, others=[watched.share()], results=results
    )
    report.save_unless_doubtful(document, options)
    return 0


def _compare(name: str, batch_size: int, engines: tuple[Any, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The engines take turns, and what they generate is compared."""
    speeds: tuple[list[float], list[float]] = ([], [])
    num_differing = num_compared = 0
    before = engines[1].stats
    for number in range(options.rounds + 1):
        tokens: dict[int, list[list[int]]] = {}
        for side in (0, 1) if number % 2 else (1, 0):
            outputs, seconds = _generate(engines[side], name, batch_size, number, options.max_tokens)
            tokens[side] = [output["token_ids"] for output in outputs]
            if number:  # the first round warms up
                speeds[side].append(sum(output["num_tokens_output"] for output in outputs) / seconds)
        num_differing += sum(one != other for one, other in zip(tokens[0], tokens[1], strict=True))
        num_compared += batch_size
    ratios = sorted(drafts / plain for plain, drafts in zip(*speeds, strict=True))
    after = engines[1].stats
    return {
        "text": name,
        "temperature": _TEMPERATURES[name],
        "batch_size": batch_size,
        "max_tokens": options.max_tokens,
        "tokens_per_s": {
            way: round(statistics.median(s), 1) for way, s in zip(("without", "with"), speeds, strict=True)
        },
        "ratio": {
            "median": round(statistics.median(ratios), 3),
            "range": [round(ratios[0], 3), round(ratios[-1], 3)],
        },
        "num_draft_tokens": after.num_draft_tokens - before.num_draft_tokens,
        "num_accepted_tokens": after.num_accepted_tokens - before.num_accepted_tokens,
        "num_outputs": num_compared,
        "num_outputs_that_differ": num_differing,
    }


def _generate(
    engine: Any, name: str, batch_size: int, number: int, max_tokens: int
) -> tuple[list[dict[str, Any]], float]:
    """What a batch gives, each request with a beginning of its own, and the seconds that it took."""
    from atom_core import SamplingParams

    prompts = [f"Note {number * batch_size + place}. {TEXTS[name]}" for place in range(batch_size)]
    params = [
        SamplingParams(temperature=_TEMPERATURES[name], max_tokens=max_tokens, ignore_eos=True, seed=place)
        for place in range(batch_size)
    ]
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return outputs, time.perf_counter() - started
