# /// script
# requires-python = ">=3.11"
# dependencies = ["schemathesis==4.32.5"]
# ///
"""Schemathesis: over 1,000 cases of our OpenAPI document, valid and not; no server error, every answer as described."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CASES_OF_AN_OPERATION = 40
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
FEW_TOKENS, CONTEXT = 4, 1024
EVERY_ANSWER = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
MUST_TAKE_SOME = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"}

schema = schemathesis.openapi.from_url(os.environ["ATOM_URL"] + "/openapi.json")
answers: Counter[tuple[str, int]] = Counter()


@schema.parametrize()
@settings(
    max_examples=CASES_OF_AN_OPERATION,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_promises(case: schemathesis.Case):
    bound(case.body)
    response = case.call(timeout=120)
    answers[case.operation.path, response.status_code] += 1
    case.validate_response(response, checks=EVERY_ANSWER)


def test_there_were_a_thousand_cases_and_every_main_route_took_some_and_refused_some():
    print(sum(answers.values()), sorted(answers.items()))
    assert sum(answers.values()) >= 1000
    for status in (200, 400):
        assert {path for path, answered in answers if answered == status} >= MUST_TAKE_SOME


def bound(body: Any) -> None:
    """Keeps texts short: a limit that would be taken becomes a small one, and what would be refused stays."""
    if not isinstance(body, dict):
        return
    for name in LIMITS:
        limit = body.get(name)
        if limit is None or (isinstance(limit, int) and FEW_TOKENS < limit <= CONTEXT):
            body[name] = FEW_TOKENS
