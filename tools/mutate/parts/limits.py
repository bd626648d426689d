"""What bounds clients: connections, bodies, keys, rates, queues, and the work of grammars."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_CORE = "atom-core/src/atom_core"
_SERVER = "atom-server/src/atom_server"
_CONNECTION_TESTS = (
    "atom-server/tests/test_connection_parts.py",
    "atom-server/tests/test_connection_ends.py",
    "atom-server/tests/test_hostile_connections.py",
    "atom-server/tests/test_departures.py",
    "atom-server/tests/test_bodies_and_trailers.py",
    "atom-server/tests/test_who_may_ask.py",
    "atom-server/tests/test_long_texts.py",
    "atom-server/tests/test_tls_and_sockets.py",
)
_BODY_TESTS = (
    "atom-server/tests/test_read_bodies.py",
    "atom-server/tests/test_bodies_and_trailers.py",
    "atom-server/tests/test_bad_input.py",
    "atom-server/tests/test_hostile_connections.py",
    "atom-server/tests/test_one_client_stalls_nobody.py",
    "atom-server/tests/test_client_names.py",
    "atom-server/tests/test_long_texts.py",
)
_KEY_TESTS = (
    "atom-server/tests/test_at_the_door.py",
    "atom-server/tests/test_keys.py",
    "atom-server/tests/test_rate_limits.py",
    "atom-server/tests/test_who_may_ask.py",
    "atom-server/tests/test_tls_and_sockets.py",
)
_QUEUE_TESTS = (
    "atom-core/tests/test_fair_shares.py",
    "atom-core/tests/test_request_limits.py",
    "atom-core/tests/test_bad_requests.py",
    "atom-core/tests/test_structured_output.py",
    "atom-server/tests/test_ids_beside_the_loop.py",
    "atom-core/tests/test_grammar_compiler.py",
    "atom-server/tests/test_output_format.py",
    "atom-server/tests/test_long_texts.py",
    "atom-core/tests/test_async_engine.py",
)
_GRAMMAR_TESTS = (
    "atom-core/tests/test_constrained_requests.py",
    "atom-core/tests/test_grammar_parts.py",
    "atom-core/tests/test_late_masks.py",
    "atom-core/tests/test_grammar_judge.py",
    "atom-core/tests/test_structured_output.py",
    "atom-core/tests/test_grammar_compiler.py",
    "atom-core/tests/test_thinking_budget.py",
    "atom-core/tests/test_structured_output_backends.py",
    "atom-core/tests/test_structured_output_tags.py",
    "atom-core/tests/test_special_tokens_in_grammars.py",
)
HARMLESS: Harmless = {
    (
        "inputs/validation.py",
        "16_384",
        "16385",
    ): "how many ids are gone through at a time decides how long that takes, and nothing else",
}

LIMITS = Part(
    name="limits",
    files={
        f"{_SERVER}/connections/listen.py": ("atom-server/tests/test_command_line.py", *_CONNECTION_TESTS),
        f"{_SERVER}/connections/*.py": _CONNECTION_TESTS,
        f"{_SERVER}/bodies/*.py": _BODY_TESTS,
        f"{_SERVER}/access/*.py": _KEY_TESTS,
        f"{_SERVER}/responses/store.py": (
            "atom-server/tests/test_response_store.py",
            "atom-server/tests/test_store_bounds.py",
        ),
        f"{_CORE}/engine/inputs/*.py": _QUEUE_TESTS,
        f"{_CORE}/structured_output/*.py": _GRAMMAR_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
