"""What is made of tokens: text, stop strings, calls and reasoning, log-probabilities, streams."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_CORE = "atom-core/src/atom_core"
_SERVER = "atom-server/src/atom_server"
_TEXT_TESTS = (
    "atom-core/tests/test_incremental_text.py",
    "atom-core/tests/test_output_processor.py",
    "atom-core/tests/test_tokenizer.py",
    "atom-core/tests/test_llm_engine.py",
    "atom-core/tests/test_async_engine.py",
    "atom-core/tests/test_open_requests.py",
)
_PARSER_TESTS = (
    "atom-server/tests/test_event_streams.py",
    "atom-server/tests/test_output_parsers.py",
    "atom-server/tests/test_bare_keys.py",
    "atom-server/tests/test_template_values.py",
    "atom-server/tests/test_response_templates.py",
    "atom-server/tests/test_declared_formats.py",
    "atom-server/tests/test_vendor_notations.py",
    "atom-server/tests/test_output_format.py",
    "atom-server/tests/test_constraints_as_grammars.py",
    "atom-server/tests/test_function_schemas.py",
    "atom-server/tests/test_tool_calls.py",
    "atom-server/tests/test_tool_choice.py",
    "atom-server/tests/test_structured_requests.py",
)
_WRITER_TESTS = (
    "atom-server/tests/test_writers.py",
    "atom-server/tests/test_event_streams.py",
    "atom-server/tests/test_chat_route.py",
    "atom-server/tests/test_completions_route.py",
    "atom-server/tests/test_response_items.py",
    "atom-server/tests/test_usage_and_logprobs.py",
    "atom-server/tests/test_messages_route.py",
    "atom-server/tests/test_message_tools.py",
    "atom-server/tests/test_responses_route.py",
    "atom-server/tests/test_response_tools.py",
    "atom-server/tests/test_tool_calls.py",
    "atom-server/tests/test_request_fields.py",
    "atom-server/tests/test_client_names.py",
    "atom-server/tests/test_client_text.py",
)

_HOW_LONG = "where bytes that are no text stop being waited for is a matter of time, not of text"
HARMLESS: Harmless = {
    ("detokenizer.py: _give_up_on_old_tokens", "len(pending) < MAX_PENDING", "*"): _HOW_LONG,
    ("answers/logprobs.py: text_logprobs", "0", "1"): "who has a token without an entry says which",
    ("detokenizer.py", "32", "33"): _HOW_LONG,
}

OUTPUT = Part(
    name="output",
    files={
        f"{_CORE}/tokenization/stop_strings.py": _TEXT_TESTS,
        f"{_CORE}/tokenization/detokenizer.py": _TEXT_TESTS,
        f"{_CORE}/engine/outputs/output_processor.py": _TEXT_TESTS,
        f"{_SERVER}/output/**/*.py": _PARSER_TESTS,
        f"{_SERVER}/answers/logprobs.py": _WRITER_TESTS,
        f"{_SERVER}/answers/streaming.py": _WRITER_TESTS,
        f"{_SERVER}/answers/*_writer.py": _WRITER_TESTS,
        f"{_SERVER}/responses/writer.py": _WRITER_TESTS,
        f"{_SERVER}/responses/output.py": _WRITER_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
