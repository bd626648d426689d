"""The notations beside xgrammar's own tags of the same families: whatever those allow is read, and is a valid call."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from atom_core import StructuredOutputParams, Tokenizer
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.matcher import Matcher
from atom_server.output.output_format import OutputFormat
from atom_server.output.parts import assemble
from tiny_models import EOS_ID, write_tokenizer

xgrammar = pytest.importorskip("xgrammar")

FAMILIES = {
    "llama": "json", "qwen_3": "hermes", "qwen_3_coder": "qwen3-coder", "harmony": "harmony", "kimi": "kimi",
    "deepseek_v3_2": "deepseek-v32", "deepseek_v4": "deepseek-v4",
    "deepseek_r1": "deepseek-v3", "deepseek_v3_1": "deepseek-v31", "glm_4_7": "glm-47", "minimax": "minimax",
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"color": {"enum": [7, 8]}, "on": {"type": "boolean"}, "n": {"enum": [1, 2, None]}},
    "required": ["color", "on", "n"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "description": "x", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def random_text(compilers, tokenizer, tag, seed):
    """A text that the grammar of `tag` allows, ended as soon as it can be."""
    params = StructuredOutputParams(structural_tag=tag)
    matcher = Matcher(compilers.submit("xgrammar", params).grammar.result().start(), tokenizer.vocab_size, [EOS_ID])
    source, token_ids = random.Random(seed), []
    for _ in range(20_000):
        allowed = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little").nonzero()[0]
        if EOS_ID in allowed and token_ids:
            return tokenizer.decode(token_ids, skip_special_tokens=False)
        # White space may go on for ever.
        visible = [int(token_id) for token_id in allowed if tokenizer.id_to_text(int(token_id)).strip()]
        token_id = source.choice([token_id for token_id in visible if token_id != EOS_ID] or allowed.tolist())
        matcher.accept([token_id])
        token_ids.append(token_id)
    raise AssertionError("no end")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_vendors_grammar_allows_is_read(tokenizer, family):
    compilers = Compilers(tokenizer, tokenizer.vocab_size, (EOS_ID,), "xgrammar")
    tag = xgrammar.get_model_structural_tag(family, tools=[TOOL], tool_choice="required", reasoning=False)
    output = OutputFormat.infer("", tokenizer, calls=FAMILIES[family])
    for seed in range(4):
        text = random_text(compilers, tokenizer, tag.model_dump(), seed)
        parser = output.parser({"paint": SCHEMA}, "", reads_reasoning=True, as_json=False)
        assert parser is not None
        calls = assemble(parser.feed(text) + parser.finish()).calls
        assert calls, text
        for name, arguments in calls:
            assert name == "paint"
            jsonschema.validate(json.loads(arguments), SCHEMA)
    compilers.close()
