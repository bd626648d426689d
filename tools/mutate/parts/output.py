"""What is made of tokens: text, stop strings, calls and reasoning, log-probabilities, streams."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

HARMLESS: Harmless = {}

OUTPUT = Part(
    name="output",
    files={
        "atom-core/src/atom_core/tokenization/stop_strings.py": (
            "atom-core/tests/test_incremental_text.py",
            "atom-core/tests/test_tokenizer.py",
            "atom-core/tests/test_llm_engine.py",
            "atom-core/tests/test_async_engine.py",
        ),
        "atom-core/src/atom_core/tokenization/detokenizer.py": (
            "atom-core/tests/test_incremental_text.py",
            "atom-core/tests/test_tokenizer.py",
            "atom-core/tests/test_llm_engine.py",
            "atom-core/tests/test_async_engine.py",
        ),
        "atom-core/src/atom_core/engine/output_processor.py": (
            "atom-core/tests/test_incremental_text.py",
            "atom-core/tests/test_tokenizer.py",
            "atom-core/tests/test_llm_engine.py",
            "atom-core/tests/test_async_engine.py",
        ),
        "atom-server/src/atom_server/output/**/*.py": (
            "atom-server/tests/test_output_parsers.py",
            "atom-server/tests/test_bare_keys.py",
            "atom-server/tests/test_response_templates.py",
            "atom-server/tests/test_declared_formats.py",
            "atom-server/tests/test_vendor_notations.py",
            "atom-server/tests/test_output_format.py",
            "atom-server/tests/test_function_schemas.py",
            "atom-server/tests/test_tool_calls.py",
            "atom-server/tests/test_tool_choice.py",
        ),
        "atom-server/src/atom_server/logprobs.py": (
            "atom-server/tests/test_chat_route.py",
            "atom-server/tests/test_completions_route.py",
            "atom-server/tests/test_messages_route.py",
            "atom-server/tests/test_message_tools.py",
            "atom-server/tests/test_responses_route.py",
            "atom-server/tests/test_response_tools.py",
            "atom-server/tests/test_tool_calls.py",
            "atom-server/tests/test_request_fields.py",
        ),
        "atom-server/src/atom_server/streaming.py": (
            "atom-server/tests/test_chat_route.py",
            "atom-server/tests/test_completions_route.py",
            "atom-server/tests/test_messages_route.py",
            "atom-server/tests/test_message_tools.py",
            "atom-server/tests/test_responses_route.py",
            "atom-server/tests/test_response_tools.py",
            "atom-server/tests/test_tool_calls.py",
            "atom-server/tests/test_request_fields.py",
        ),
        "atom-server/src/atom_server/*_writer.py": (
            "atom-server/tests/test_chat_route.py",
            "atom-server/tests/test_completions_route.py",
            "atom-server/tests/test_messages_route.py",
            "atom-server/tests/test_message_tools.py",
            "atom-server/tests/test_responses_route.py",
            "atom-server/tests/test_response_tools.py",
            "atom-server/tests/test_tool_calls.py",
            "atom-server/tests/test_request_fields.py",
        ),
        "atom-server/src/atom_server/response_output.py": (
            "atom-server/tests/test_chat_route.py",
            "atom-server/tests/test_completions_route.py",
            "atom-server/tests/test_messages_route.py",
            "atom-server/tests/test_message_tools.py",
            "atom-server/tests/test_responses_route.py",
            "atom-server/tests/test_response_tools.py",
            "atom-server/tests/test_tool_calls.py",
            "atom-server/tests/test_request_fields.py",
        ),
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
