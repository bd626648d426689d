"""Tools through the official client: enforced calls always parse and follow the function's schema."""

from __future__ import annotations

import json
import random

import pytest
from openai import BadRequestError

from atom_server import ServerOptions

MESSAGES = [{"role": "user", "content": "hello"}]


def make_tool(name="weather", **properties):
    properties = properties or {"city": {"type": "string", "maxLength": 5}, "unit": {"enum": ["C", "F"]}}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def call(client, **fields):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 300, "seed": 3, "parallel_tool_calls": False}
    return client.chat.completions.create(**(settings | fields))


def random_property(source):
    return source.choice(
        [
            {"type": "string", "maxLength": source.randint(0, 4)},
            {"enum": ["a", "b", 3]},
            {"type": "boolean"},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            {"$ref": "#/$defs/size"},
        ]
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_required_call_follows_its_schema(client, seed):
    source = random.Random(seed)
    tool = make_tool("f", **{f"p{index}": random_property(source) for index in range(source.randint(1, 3))})
    tool["function"]["parameters"]["$defs"] = {"size": {"enum": ["small", "large"]}}
    choice = call(client, tools=[tool, make_tool("g")], tool_choice="required", seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (made,) = choice.message.tool_calls
    assert made.id.startswith("call_")
    arguments = json.loads(made.function.arguments)
    expected = tool["function"]["parameters"]["properties"] if made.function.name == "f" else {"city", "unit"}
    assert set(arguments) == set(expected)


def test_a_named_function_is_the_one_that_is_called(client):
    choice = {"type": "function", "function": {"name": "g"}}
    answer = call(client, tools=[make_tool("f"), make_tool("g")], tool_choice=choice).choices[0]
    assert [made.function.name for made in answer.message.tool_calls] == ["g"]
    assert json.loads(answer.message.tool_calls[0].function.arguments)["unit"] in ("C", "F")


def test_streamed_deltas_make_up_the_same_call(client):
    fields = {"tools": [make_tool()], "tool_choice": "required"}
    (whole,) = call(client, **fields).choices[0].message.tool_calls
    chunks = list(call(client, stream=True, **fields))
    deltas = [made for chunk in chunks for made in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id
    assert deltas[0].function.name == whole.function.name
    assert {made.index for made in deltas} == {0}
    assert len(deltas) > 2
    assert "".join(made.function.arguments for made in deltas) == whole.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_an_earlier_call_and_auto_and_none_are_taken(client):
    messages = [
        *MESSAGES,
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]
    for choice in ("auto", "none"):
        answer = call(client, tools=[make_tool()], tool_choice=choice, messages=messages, max_tokens=4)
        assert answer.choices[0].message.content is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [make_tool()], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [make_tool(), make_tool()]}, "tools"),
        (
            {"tools": [make_tool()], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(client, fields, param):
    with pytest.raises(BadRequestError) as caught:
        call(client, **fields)
    assert caught.value.param == param


def test_reasoning_that_the_template_began_is_told_apart(make_front, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}{# </think> #}")
    options = ServerOptions(served_model_name="tiny", chat_template=str(template))
    with make_front(options) as server, server.client() as client:
        fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
        thinking = fields | {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
        whole = client.chat.completions.create(**thinking).choices[0].message
        assert whole.content == ""
        assert whole.reasoning_content == whole.reasoning
        chunks = client.chat.completions.create(stream=True, **thinking)
        news = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks]
        assert "".join(news) == whole.reasoning_content != ""
        assert client.chat.completions.create(**fields).choices[0].message.content
        thinking["extra_body"] = {**thinking["extra_body"], "thinking_token_budget": 3}
        ended = client.chat.completions.create(**thinking, max_completion_tokens=40)
        assert ended.choices[0].message.content
        assert whole.reasoning_content.startswith(ended.choices[0].message.reasoning_content)
        # The mark that ends it counts too: it is several tokens of this vocabulary.
        assert 3 < ended.usage.completion_tokens_details.reasoning_tokens < 40
