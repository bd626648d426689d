"""Earlier calls in the styles of published templates: each gets arguments and content as it can write them."""

from __future__ import annotations

import pytest

from atom_server.prompts.call_history import HistoryStyle
from atom_server.prompts.chat_template import ChatTemplate

# What the templates of families do with a message that has calls, and with nothing else.
OBJECTS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endfor %}"
)
# DeepSeek R1 adds texts, and writes calls only where there is no content at all.
TEXTS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
    "{{ c.function.name + '\\n```json\\n' + c.function.arguments }}{% endfor %}"
    "{% else %}{{ m.role + m.content }}{% endif %}{% endfor %}"
)
# Qwen 2.5 takes both, and adds content where there is any.
BOTH = (
    "{% for m in messages %}{% if m.content %}{{ m.role + m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)
# GLM and Qwen 3 Coder go through the parameters.
TAGS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{% for key, value in c.function.arguments.items() %}<arg_key>{{ key }}</arg_key>"
    "<arg_value>{{ value }}</arg_value>{% endfor %}</tool_call>{% endfor %}{% endfor %}"
)
SILENT = "{% for m in messages %}{{ m.content }}{% endfor %}"

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]


@pytest.mark.parametrize(
    ("source", "has_objects", "no_content"),
    [(OBJECTS, True, ""), (TEXTS, False, None), (BOTH, True, ""), (TAGS, True, ""), (SILENT, True, "")],
)
def test_the_style_of_a_template_is_found_by_trying(source, has_objects, no_content):
    assert HistoryStyle.of(ChatTemplate(source)) == HistoryStyle(has_objects, no_content)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (OBJECTS, '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'),
        (TEXTS, 'f\n```json\n{"a": "é"}'),
        (BOTH, 'f{"a": "é"}'),
        (TAGS, "<tool_call>f<arg_key>a</arg_key><arg_value>é</arg_value></tool_call>"),
    ],
)
def test_a_call_is_written_as_the_model_knows_it(source, written):
    template = ChatTemplate(source)
    text = template.render(HistoryStyle.of(template).applied(MESSAGES))
    assert written in text
    assert "None" not in text


def test_reasoning_goes_by_every_name_that_templates_know():
    (_, message, _) = HistoryStyle().applied(MESSAGES)
    assert {message[name] for name in ("reasoning_content", "reasoning", "thinking")} == {"hm"}


def test_what_the_model_wrote_wrong_stays_as_it_was():
    broken = {**CALL, "function": {"name": "f", "arguments": '{"a": '}}
    (message,) = HistoryStyle().applied([{"role": "assistant", "content": "", "tool_calls": [broken]}])
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_only_a_call_without_content_is_shown_with_its_thinking():
    # GPT-OSS takes a message's thinking for what it is to say where there is no call.
    for message in ({**MESSAGES[1], "content": "So"}, {"role": "assistant", "reasoning": "hm"}):
        assert "thinking" not in HistoryStyle().applied([message])[0]


@pytest.mark.parametrize("calls", [None, []])
def test_a_message_without_calls_has_no_field_for_them(calls):
    assert "tool_calls" not in HistoryStyle().applied([{"role": "assistant", "content": "x", "tool_calls": calls}])[0]


def test_content_may_be_missing():
    assert HistoryStyle().applied([{"role": "assistant"}])[0]["content"] == ""
