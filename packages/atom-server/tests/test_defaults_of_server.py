"""What a field or an argument is where nobody gave it: every default of options, answers and records."""

from __future__ import annotations

from typing import Any

import pytest

from stated_defaults import Defaults, stated_defaults

# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "access.keys.Caller": {"name": "", "is_admin": True, "tenant": ""},
    "access.keys._Key": {"is_admin": False},
    "access.keys.KeyRing.__init__": {"salted": True},
    "access.rate_limits.RateLimits.__init__": {"requests": 0, "tokens": 0},
    "answers.logprobs.text_logprobs": {"offset": 0},
    "bench.client.Outcome": {
        "ttft": 0.0,
        "latency": 0.0,
        "num_input_tokens": 0,
        "num_output_tokens": 0,
        "error": "",
        "sent": 0.0,
    },
    "bench.workload.Workload": {
        "range_ratio": 1.0,
        "prefix_len": 0,
        "request_rate": float("inf"),
        "burstiness": 1.0,
        "ignore_eos": False,
        "seed": 0,
        "is_chat": False,
    },
    "cli.logs.configure_logging": {"level": "info"},
    "connections.limits.ConnectionLimits": {
        "head_bytes": 65536,
        "num_fields": 128,
        "num_pipelined": 16,
        "request_s": 30.0,
        "idle_s": 5.0,
        "linger_s": 5.0,
        "linger_bytes": 33554432,
    },
    "errors.APIError.response": {"path": ""},
    "generation.collect.Collected": {"text": "", "finish_reason": "stop"},
    "generation.reply_plan.encode_chat": {"has_to_fit": True},
    "generation.reply_reader.ReplyReader.__init__": {"several": True, "keeps_reasoning": True},
    "generation.reply_reader.ReplyReader.take": {"num_tokens": 0, "finished": False},
    "generation.tallies._Tally": {
        "num_tokens": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "seconds_per_token": 0.0,
        "latency": 0.0,
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
    "output.call_object.CallObject.__init__": {"name_key": "name"},
    "output.notation.TaggedStyle": {"text_value": ""},
    "output.notation.CallNotation": {
        "call_end": "",
        "after_name": "",
        "begin": "",
        "end": "",
        "separator": "\n",
        "style": "object",
        "name_key": "name",
        "arguments_key": "arguments",
        "is_numbered": False,
        "repeats": True,
        "id_length": 0,
    },
    "output.output_format.OutputFormat.infer": {"calls": "auto", "reasoning": "auto"},
    "output.parts.Assembled": {"content": "", "reasoning": ""},
    "output.reasoning.ReasoningParser.__init__": {"is_open": False},
    "output.response_template.calls.CallReading": {
        "name": "name",
        "arguments": "arguments",
        "quote": "",
        "tag_end": "",
    },
    "output.response_template.template.Field": {"content": "text", "is_transformed_each": False},
    "prompts.call_history.HistoryStyle": {"has_objects": True, "no_content": ""},
    "prompts.chat_template.ChatTemplate.render": {"add_generation_prompt": True, "continue_final_message": False},
    "prompts.conversation.encode_messages": {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "add_special_tokens": False,
        "has_to_fit": True,
    },
    "prompts.template_sandbox.RenderBudget.__init__": {"cpu_seconds": 2.0, "max_characters": 67108864},
    "prompts.texts.encode_texts": {"add_special_tokens": True, "param": "prompt", "has_to_fit": True},
    "prompts.texts.decode_tokens": {"skip_special_tokens": True},
    "prompts.texts.encode_prompts": {"param": "prompt", "with_text": False},
    "request_log.RequestRecord": {
        "key": "",
        "status": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "queued": 0.0,
        "ttft": 0.0,
        "tpot": 0.0,
    },
    "responses.event_log.EventLog.follow": {"after": -1},
    "responses.store.StoredResponse": {"owner": ""},
    "responses.store.ResponseStore.__init__": {"max_responses": 1024, "max_characters": 67108864},
    "responses.store.ResponseStore.get": {"owner": ""},
    "responses.store.ResponseStore.find": {"owner": ""},
    "responses.store.ResponseStore.remove": {"owner": ""},
    "routes.accepted.accepted": {"generates": True},
    "routes.admin.pause": {"mode": "keep"},
    "routes.responses.get_response": {"stream": False, "starting_after": -1},
    "routes.responses.list_input_items": {"limit": 20, "order": "desc"},
    "schemas.answers.CompletionTokensDetails": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    "schemas.answers.TextCompletion": {"object": "text_completion"},
    "schemas.answers.FunctionCall": {"arguments": ""},
    "schemas.answers.Message": {"role": "assistant"},
    "schemas.answers.ChatCompletion": {"object": "chat.completion"},
    "schemas.answers.ChatChunk": {"object": "chat.completion.chunk"},
    "state.ServerState": {"draining": False},
}


@pytest.fixture(scope="module")
def found() -> Defaults:
    """Those of all modules that can be imported here."""
    return stated_defaults("atom_server")


def test_every_default_is_listed(found: Defaults):
    new = {name: own for name, own in found.items() if name not in DEFAULTS}
    assert new == {}, "write these into DEFAULTS"


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_nobody_gave_has_its_default(name: str, found: Defaults):
    assert found.get(name, DEFAULTS[name]) == DEFAULTS[name]
