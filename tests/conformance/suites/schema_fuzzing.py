# /// script
# requires-python = ">=3.11"
# dependencies = ["schemathesis==4.32.5"]
# ///
"""Schemathesis on our OpenAPI document: more than 1,000 cases, valid and not, and no error of the server's own."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

CASES_OF_AN_OPERATION = 60
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
FEW_TOKENS, CONTEXT = 4, 1024

schema = schemathesis.openapi.from_url(os.environ["ATOM_URL"] + "/openapi.json")
statuses: Counter[int] = Counter()


@schema.parametrize()
@settings(
    max_examples=CASES_OF_AN_OPERATION,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_no_case_is_the_servers_error(case: schemathesis.Case):
    bound(case.body)
    response = case.call(timeout=120)
    statuses[response.status_code] += 1
    case.validate_response(response, checks=[not_a_server_error])


def test_there_were_a_thousand_cases_taken_and_refused():
    print(sorted(statuses.items()))
    assert sum(statuses.values()) >= 1000
    assert statuses[200] >= 100
    assert statuses[400] >= 100


def bound(body: Any) -> None:
    """Keeps texts short: a limit that would be taken becomes a small one, and what would be refused stays."""
    if not isinstance(body, dict):
        return
    for name in LIMITS:
        limit = body.get(name)
        if limit is None or (isinstance(limit, int) and FEW_TOKENS < limit <= CONTEXT):
            body[name] = FEW_TOKENS
