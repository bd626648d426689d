"""Lines of the log: nothing that a client sends ends one, forges one, or reaches a terminal."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_core import StructuredOutputParams
from atom_core.log_lines import LineFormatter, in_log
from atom_core.structured_output import Compilers
from atom_core.structured_output.constraints.choice import choose

HOSTILE = "a\nINFO forged\r\n\x1b[2J\x00\u2028\u202e\x85b"


@given(st.text())
def test_any_text_is_one_short_printable_line(text):
    shown = in_log(text, 50)
    assert shown.isprintable()
    assert shown.splitlines() in ([], [shown])
    assert len(shown) <= 50 * len("\\U0010ffff")
    assert text != text[:50] or not text.isprintable() or shown == text


def test_what_is_cut_says_so():
    assert in_log("x" * 500) == "x" * 117 + "..."


@pytest.fixture
def log():
    """A logger, and what the formatter of our processes makes of its records."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("of a test")
    logger.addHandler(handler)
    return logger, written


def test_a_record_is_one_line_whatever_is_in_it(log):
    logger, written = log
    logger.warning("the client said %s", HOSTILE)
    [line] = written.getvalue().splitlines()
    assert line.startswith("WARNING the client said a\\nINFO forged\\r\\n\\x1b[2J")


def test_a_record_has_an_end(log):
    logger, written = log
    logger.warning("x" * 10**6)
    assert len(written.getvalue()) < 5000


def test_a_traceback_cannot_look_like_other_records(log):
    logger, written = log
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed")
    first, *others = written.getvalue().splitlines()
    assert first == "ERROR it failed"
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert "forged" in written.getvalue()


def schema(number: int) -> dict:
    """A schema with a keyword, a type and a name of its own."""
    keyword, kind = f"x{number}{HOSTILE}", f"t{number}{HOSTILE}"
    return {"type": "object", "properties": {keyword: {"type": kind if number % 2 else "string", keyword: 1}}}


def test_schemas_leave_nothing_of_theirs_in_the_log_and_in_memory(engine, caplog):
    compilers = Compilers(engine.tokenizer, engine.info.vocab_size, engine.info.eos_token_ids)
    with caplog.at_level(logging.INFO, logger="atom_core"):
        for number in range(10_000):
            compilers.choose(StructuredOutputParams(json=schema(number)))
    compilers.close()
    assert len(compilers._told) == len(caplog.messages) <= 2
    assert all(message.isprintable() and "forged" not in message for message in caplog.messages)


def test_an_objection_names_a_keyword_of_json_schema():
    params = StructuredOutputParams(json={"type": "array", "uniqueItems": True})
    assert choose(params, "auto", True)[1] == "xgrammar is not known to enforce uniqueItems of type array"
