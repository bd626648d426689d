"""Constraints for tests: parameters, random schemas, matchers of either library, and a loop without an engine."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.structured_output import Compilers, Matcher
from atom_models import load_model

BACKENDS = ("llguidance", "xgrammar")
PROMPT = [5, 6, 7, 8, 9]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
# Without a string of bounded length, which xgrammar is not trusted with.
PLACE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["town", "river", "mountain range"]},
        "height": {"anyOf": [{"type": "integer", "minimum": -400, "maximum": 9000}, {"type": "null"}]},
        "found": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["kind", "height", "found", "tags"],
    "additionalProperties": False,
}
SCHEMA_FOR = {"llguidance": PERSON, "xgrammar": PLACE}


def make_params(
    temperature: float = 1.0, max_tokens: int = 400, seed: int | None = 1, **options: Any
) -> SamplingParams:
    """Sampling parameters; fields of `StructuredOutputParams` among the options become the constraint."""
    names = {field.name for field in msgspec.structs.fields(StructuredOutputParams)}
    constraint = StructuredOutputParams(**{name: options.pop(name) for name in names & options.keys()})
    return SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, structured_outputs=constraint, **options
    )


def make_value_schema(rng: random.Random, depth: int = 0, *, strings: bool = True) -> dict[str, Any]:
    """A random schema whose texts are short; without `strings` one that xgrammar enforces."""
    kinds = ["integer", "boolean", "enum", "null", "number", *(["string"] if strings else ["anyOf"])]
    match rng.choice(kinds + (["object", "array"] * 2 if depth < 3 else [])):
        case "string":
            low = rng.randrange(3)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(6)}
        case "integer":
            low = rng.randrange(-100, 100)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1000)}
        case "number" if strings:
            return {"type": "number", "minimum": 0, "maximum": rng.randrange(1, 100), "multipleOf": 1}
        case "enum":
            return {"enum": rng.sample(["red", "green", 'a "quote"', 7, None, True, "ü"], rng.randrange(1, 5))}
        case "array":
            low = rng.randrange(2)
            items = make_value_schema(rng, depth + 1, strings=strings)
            return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randrange(3)}
        case "object":
            return make_object_schema(rng, depth + 1, strings=strings)
        case "anyOf" | "number":
            return {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5, "maximum": 99}, {"const": "x"}]}
        case kind:
            return {"type": kind}


def make_object_schema(rng: random.Random, depth: int = 0, *, strings: bool = True) -> dict[str, Any]:
    """A random schema of an object."""
    names = rng.sample(["a", "b", "name", "a b", "π", "x_1"], rng.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: make_value_schema(rng, depth, strings=strings) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def make_matcher(
    engine: LLMEngine,
    constraint: StructuredOutputParams,
    backend: str = "llguidance",
    *,
    vocab_size: int | None = None,
) -> Matcher:
    """A matcher over the engine's vocabulary, or more rows than that."""
    assert engine.tokenizer is not None
    vocab_size = vocab_size or engine.info.vocab_size
    compilers = Compilers(engine.tokenizer, vocab_size, engine.info.eos_token_ids)
    parser = compilers.submit(backend, constraint).grammar.result(20).start()
    return Matcher(parser, vocab_size, engine.info.eos_token_ids)


def unpacked(words: np.ndarray, vocab_size: int) -> np.ndarray:
    """A mask as booleans."""
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size].astype(bool)


def run(engine: LLMEngine, params: Any, prompts: Any = None) -> list[dict[str, Any]]:
    """What the engine generates after `PROMPT`, or after others."""
    return engine.generate(prompts or [PROMPT], params, use_tqdm=False)


def greedy_loop(engine: LLMEngine, folder: Path, matcher: Matcher, prompt: list[int]) -> list[int]:
    """Greedy tokens of a model alone under a matcher's masks: all logits anew for each token."""
    model = _model(folder)
    token_ids = list(prompt)
    while token_ids[-1] not in engine.info.eos_token_ids or len(token_ids) == len(prompt):
        logits = model.logits([token_ids])[0][-1].numpy().copy()
        logits[~unpacked(matcher.mask(), len(logits))] = -np.inf
        token_ids.append(int(logits.argmax()))
        matcher.accept(token_ids[-1:])
    return token_ids[len(prompt) :]


@cache
def _model(folder: Path) -> Any:
    return load_model(folder, dtype="float32")
