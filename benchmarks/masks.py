"""What grammars cost in a step: masks of a batch over a real vocabulary, and their use on logits."""

from __future__ import annotations

import argparse
import json
import statistics
import time

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}
ANSWER = {
    "name": "Ada Lovelace of London",
    "age": 36,
    "tags": ["mathematics", "engines", "poetry"],
    "address": {"street": "12 St James's Square", "zip": "12345"},
}
PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [A-Za-z]+)+"
CASES = {
    "JSON schema": ({"json": SCHEMA}, json.dumps(ANSWER)),
    "any JSON object": ({"json_object": True}, json.dumps(ANSWER)),
    "regex": ({"regex": PATTERN}, "2031-05-17 and the quick brown fox jumps over the lazy dog"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks masks`."""
    parser.add_argument("--model", default="smollm2", help="whose vocabulary")
    parser.add_argument("--batch-size", type=int, default=16)


def run(options: argparse.Namespace) -> int:
    """Measure and print a line for each kind of grammar, in milliseconds for the whole batch."""
    import numpy as np
    import torch

    from atom_core import StructuredOutputParams
    from atom_core.structured_output import GrammarCompiler, Matcher
    from atom_core.structured_output.vocabulary import make_parser_vocabulary
    from atom_core.tokenization import Tokenizer
    from atom_models import open_checkpoint, resolve_model

    checkpoint = open_checkpoint(resolve_model(options.model))
    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    vocab_size = int(checkpoint.config["vocab_size"])
    compiler = GrammarCompiler(make_parser_vocabulary(tokenizer, vocab_size, checkpoint.eos_token_ids))
    logits = torch.randn(options.batch_size, vocab_size)
    print(f"{options.model}: {vocab_size} tokens, batch {options.batch_size}; milliseconds a step")
    for name, (constraint, text) in CASES.items():
        started = time.perf_counter()
        grammar = compiler.submit(StructuredOutputParams(**constraint)).result()
        compiled = time.perf_counter() - started
        matchers = [Matcher(grammar, vocab_size, checkpoint.eos_token_ids) for _ in range(options.batch_size)]
        making, using = [], []
        for token_id in tokenizer.encode(text, add_special_tokens=False):
            started = time.perf_counter()
            masks = [matcher.mask() for matcher in matchers]
            for matcher in matchers:
                matcher.accept([token_id])
            done = time.perf_counter()
            for row, words in zip(logits, masks, strict=True):
                is_banned = np.unpackbits(~words.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
                row.masked_fill_(torch.from_numpy(is_banned), float("-inf"))
            using.append(1e3 * (time.perf_counter() - done))
            making.append(1e3 * (done - started))
        made = f"mean {statistics.mean(making):.2f}, median {statistics.median(making):.2f}, most {max(making):.2f}"
        used = f"median {statistics.median(using):.2f}"
        print(f"{name:16s} compiled in {1e3 * compiled:.1f}; masks: {made}; use: {used}")
    return 0
