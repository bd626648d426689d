"""Grammars that differ in their special tokens only stay apart, whatever the library compiled before."""

from __future__ import annotations

import numpy as np
import pytest

from atom_core import StructuredOutputParams, Tokenizer
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.matcher import Matcher
from tiny_models import EOS_ID, add_special_tokens, write_tokenizer

MARKS = ("<|a|>", "<|b|>", "<|c|>", "<|d|>")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marked")
    write_tokenizer(folder)
    add_special_tokens(folder, MARKS)
    return Tokenizer.from_folder(folder)


def tagged(begin, after_name, schema):
    """A call between special tokens."""
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": f"{begin}f{after_name}", "content": content, "end": ""}
    tags = {"type": "tags_with_separator", "tags": [tag], "separator": "", "at_least_one": True}
    return StructuredOutputParams(structural_tag={"type": "structural_tag", "format": tags})


def follow(tokenizer, matcher):
    """The text that comes of always taking the first token that is allowed."""
    token_ids = []
    for _ in range(64):
        allowed = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little").nonzero()[0]
        token_id = int(allowed[0])
        if token_id == EOS_ID:
            return tokenizer.decode(token_ids, skip_special_tokens=False)
        matcher.accept([token_id])
        assert matcher.error is None
        token_ids.append(token_id)
    raise AssertionError("no end")


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_grammars_that_differ_in_special_tokens_stay_apart(tokenizer, backend):
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    compilers = Compilers(tokenizer, tokenizer.vocab_size, (EOS_ID,), backend)
    schema = {"type": "object", "properties": {"p": {"const": "x"}}, "required": ["p"], "additionalProperties": False}
    for begin, after_name in (("<|a|>", "<|b|>"), ("<|c|>", "<|d|>"), ("<|a|>", "<|d|>")):
        grammar = compilers.submit(backend, tagged(begin, after_name, schema)).grammar.result()
        matcher = Matcher(grammar.start(), tokenizer.vocab_size, [EOS_ID], max_forced=0)
        assert follow(tokenizer, matcher).startswith(f'{begin}f{after_name}{{"p": "x"}}')
    compilers.close()
