"""What an option, a field of a request or a limit is where nobody gave it."""

from __future__ import annotations

from typing import Any

from stated_defaults import stated_defaults

# What users and clients give, what they are told, and the limits that they meet.
MODULES = (
    "access.keys",
    "access.rate_limits",
    "bench.datasets.sample",
    "bench.workload",
    "connections.limits",
    "options",
    "output.response_template.*",
    "prompts.template_sandbox",
    "responses.store",
    "routes.*",
    "schemas.*",
)
# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "access.keys.Caller": {"name": "", "is_admin": True, "tenant": ""},
    "access.keys._Key": {"is_admin": False},
    "access.keys.KeyRing.__init__": {"salted": True},
    "access.rate_limits.RateLimits.__init__": {"requests": 0, "tokens": 0},
    "bench.datasets.sample.Sample": {"num_tokens": 0},
    "bench.datasets.sample.DatasetOptions": {
        "name": "random",
        "num_prompts": 1000,
        "seed": 0,
        "input_len": 1024,
        "output_len_random": 128,
        "range_ratio": 1.0,
        "prefix_len": 0,
        "sonnet_input_len": 550,
        "sonnet_output_len": 150,
        "sonnet_prefix_len": 200,
    },
    "bench.workload.Workload": {"request_rate": float("inf"), "burstiness": 1.0, "seed": 0},
    "connections.limits.ConnectionLimits": {
        "head_bytes": 65536,
        "num_fields": 128,
        "num_pipelined": 16,
        "request_s": 30.0,
        "idle_s": 5.0,
        "linger_s": 5.0,
        "linger_bytes": 33554432,
    },
    "options.ServerOptions": {
        "host": "127.0.0.1",
        "port": 8000,
        "require_key": False,
        "open_metrics": False,
        "metrics_prefix": "atom",
        "share_prefixes": False,
        "requests_per_minute": 0,
        "tokens_per_minute": 0,
        "tool_call_format": "auto",
        "reasoning_format": "auto",
        "max_body_mb": 16.0,
        "max_connections": 4096,
        "timeout_request": 30.0,
        "drain_timeout": 30.0,
        "restart_engine": 0,
        "timeout_keep_alive": 5,
        "log_level": "info",
    },
    "output.response_template.calls.CallReading": {
        "name": "name",
        "arguments": "arguments",
        "quote": "",
        "tag_end": "",
    },
    "output.response_template.template.Field": {"content": "text", "is_transformed_each": False},
    "prompts.template_sandbox.RenderBudget.__init__": {"cpu_seconds": 2.0, "max_characters": 67108864},
    "responses.store.StoredResponse": {"owner": ""},
    "responses.store.ResponseStore.__init__": {"max_responses": 1024, "max_characters": 67108864},
    "responses.store.ResponseStore.get": {"owner": ""},
    "responses.store.ResponseStore.find": {"owner": ""},
    "responses.store.ResponseStore.remove": {"owner": ""},
    "routes.accepted.accepted": {"generates": True},
    "routes.admin.pause": {"mode": "keep"},
    "routes.admin.sleep": {"level": 1},
    "routes.responses.get_response": {"stream": False, "starting_after": -1},
    "routes.responses.list_input_items": {"limit": 20, "order": "desc"},
    "schemas.answers.CompletionTokensDetails": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    "schemas.answers.TextCompletion": {"object": "text_completion"},
    "schemas.answers.FunctionCall": {"arguments": ""},
    "schemas.answers.Message": {"role": "assistant"},
    "schemas.answers.ChatCompletion": {"object": "chat.completion"},
    "schemas.answers.ChatChunk": {"object": "chat.completion.chunk"},
}


def test_what_nobody_gave_has_its_default():
    assert stated_defaults("atom_server", MODULES) == DEFAULTS
