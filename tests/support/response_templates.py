"""Response templates of the families that have some, and outputs of random models that follow them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>"}
CHATML = "<|im_start|>assistant\n"

TEMPLATES: dict[str, dict[str, Any]] = {
    "smollm": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>"},
        },
    },
    "qwen": {
        "version": 1,
        "defaults": {"role": "assistant"},
        "start_anchor": CHATML,
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
        },
    },
    "qwen-coder": {
        "start_anchor": CHATML,
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>", "repeats": True, "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
                "transform": FUNCTION,
            },
            "content": {"close_pattern": r"\s*<\|im_end\|>"},
        },
    },
    "qwen-values": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": FUNCTION,
            },
        },
    },
    "values": {
        "start_anchor": CHATML,
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"<call:(?P<name>\w+)>", "close": "</call>", "repeats": True, "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<(?P<key>\w+)=(?P<value>.*?)/>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": FUNCTION,
            },
            "content": {},
        },
    },
    "gemma": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True,
                "content": "json", "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": FUNCTION,
            },
            "content": {"close": ["<turn|>", "<|tool_response>"]},
        },
    },
    "cohere": {
        "start_anchor": "<|CHATBOT_TOKEN|>",
        "fields": {
            "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
            "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
            "tool_calls": {
                "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
            },
        },
    },
    "ernie": {
        "start_anchor_pattern": "Assistant: ?",
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "content": {"open": "<response>\n", "close_pattern": r"\n?</response>"},
            "tool_calls": {
                "open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
        },
    },
    "gpt-oss": {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>", "repeats": True, "content": "json", "transform": FUNCTION,
            },
        },
    },
    "blocks": {
        "start_anchor": "<|message_model|>",
        "fields": {
            "thinking": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_thinking\|>", "close": "<|end_message|>",
                "repeats": True, "join": "", "content_args": {"strip": False},
            },
            "content": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_text\|>", "close": "<|end_message|>",
                "repeats": True, "join": " ", "content_args": {"strip": False},
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_invoke_tool_json\|>",
                "close": "<|end_message|>", "repeats": True, "content": "json",
                "transform": {"function": {"name": "{content.name}", "arguments": "{content.args}"}},
            },
        },
    },
    "lines": {
        "start_anchor": "BOT>",
        "fields": {
            "tool_calls": {
                "open_pattern": r"\[\[(?P<name>\w+)\n", "close": "]]", "repeats": True, "content": "kv-lines",
                "content_args": {"kv_sep": "=", "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                "transform": FUNCTION,
            },
            "content": {},
            "score": {"open": "<score>", "close": "</score>", "content": "int"},
        },
    },
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How a family's prompt ends, and how its model writes.

    Attributes:
        openings: what the last turn may begin with in the prompt.
        say, think: text of the answer and of reasoning.
        call: a function's name and arguments; `calls` several with `comma` between them, where one field holds all.
        between: the parts.
        last: after everything.
    """

    openings: tuple[str, ...]
    say: str
    think: str
    call: Callable[[str, dict[str, Any]], str]
    calls: str = ""
    between: str = ""
    comma: str = ""
    last: str = ""


def _object(form: str, name: str = "name", arguments: str = "arguments") -> Callable[[str, dict[str, Any]], str]:
    return lambda function, values: form.format(json.dumps({name: function, arguments: values}))


def _tags(form: str, tag: str, **options: Any) -> Callable[[str, dict[str, Any]], str]:
    def write(function: str, values: dict[str, Any]) -> str:
        told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        return form.format(function, "".join(tag.format(key, value) for key, value in told.items()))

    return write


def _bare(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_bare(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_bare, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


FAMILIES = {
    "smollm": Family((CHATML, CHATML + "<think>\n"), "{}", "<think>{}</think>", _object("<tool_call>{}</tool_call>")),
    "qwen": Family(
        (CHATML, CHATML + "<think>\n\n</think>\n\n", CHATML + "<think>\n"), "{}", "<think>\n{}\n</think>\n\n",
        _object("\n<tool_call>\n{}\n</tool_call>"), last="<|im_end|>\n<|endoftext|>",
    ),
    "qwen-coder": Family(
        (CHATML, CHATML + "<think>\n"), "{}", "<think>\n{}\n</think>\n\n",
        _tags("\n<tool_call>\n<function={}>\n{}</function>\n</tool_call>", "<parameter={}>\n{}\n</parameter>\n"),
        last="<|im_end|>",
    ),
    # Has no field for answers.
    "qwen-values": Family(
        (CHATML, CHATML + "<think>\n"), "", "<think>\n{}\n</think>\n\n",
        _tags("\n<tool_call>\n<function={}>\n{}</function>\n</tool_call>", "<parameter={}>\n{}\n</parameter>\n"),
    ),
    "values": Family((CHATML,), "{}", "<think>{}</think>", _tags("<call:{}>{}</call>", "<{}={}/>")),
    "gemma": Family(
        ("<|turn>model\n", "<tool_response|>", "<|turn>model\n<|channel>thought\n"), "{}",
        "<|channel>thought\n{}<channel|>", lambda name, values: f"<|tool_call>call:{name}{_bare(values)}<tool_call|>",
        last="<turn|>",
    ),
    "cohere": Family(
        ("<|CHATBOT_TOKEN|>", "<|CHATBOT_TOKEN|><|START_THINKING|>"), "<|START_RESPONSE|>{}<|END_RESPONSE|>",
        "<|START_THINKING|>{}<|END_THINKING|>", _object("{}", "tool_name", "parameters"),
        calls="<|START_ACTION|>[\n {}\n]<|END_ACTION|>", comma=",\n ",
    ),
    "ernie": Family(
        ("Assistant: ",), "<response>\n{}\n</response>\n", "{}</think>\n\n",
        _object("<tool_call>\n{}\n</tool_call>\n"),
    ),
    "gpt-oss": Family(
        ("<|start|>assistant",), "<|channel|>final<|message|>{}<|end|>", "<|channel|>analysis<|message|>{}<|end|>",
        lambda name, values: (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(values)}<|call|>"
        ),
        between="<|start|>assistant",
    ),
    "blocks": Family(
        ("<|message_model|>",), "<|message_model|><|content_text|>{}<|end_message|>",
        "<|content_thinking|>{}<|end_message|>",
        _object("<|message_model|>someone<|content_invoke_tool_json|>{}<|end_message|>", "name", "args"),
    ),
    "lines": Family(("BOT>",), "{}", "<score> 7 </score>", _tags("[[{}\n{}]]", "{}={}\n")),
}  # fmt: skip

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
        "exact": {"type": "boolean"}, "where": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip
NAMES = ("find", "ask")
TOOLS = [{"type": "function", "function": {"name": name, "description": "x", "parameters": SCHEMA}} for name in NAMES]
_WORDS = ("so", "Ünïcode", "a < b", "<tool", "\n", "{x}", "|>", '"quoted"', "1.", "  ", "</", "é", "🙂")


def random_text(source: random.Random) -> str:
    """Words, with what begins like marks; it neither begins nor ends with white space."""
    return "w" + " ".join(source.choice(_WORDS) for _ in range(source.randrange(8))) + "w"


def random_arguments(source: random.Random) -> dict[str, Any]:
    """Some of the parameters in `SCHEMA`."""
    values = {
        "city": source.choice(["Paris", "New York", "Ünï"]), "days": source.randrange(-9, 99),
        "share": source.randrange(99) + 0.5, "exact": source.random() < 0.5,
        "tags": [source.choice("abc") for _ in range(source.randrange(3))], "where": {"x": source.randrange(9)},
    }  # fmt: skip
    return {key: values[key] for key in source.sample(sorted(values), source.randrange(len(values) + 1))}


def random_reply(name: str, source: random.Random) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    """A prompt, what a model answers that follows the template of `name`, and the calls in it."""
    family = FAMILIES[name]
    opening = source.choice(family.openings)
    prompt = f"system {source.choice(family.openings)}an earlier turn\n{opening}"
    has_begun = opening.endswith(("<think>\n", "thought\n", "THINKING|>"))
    form = "{}" + family.think.partition("{}")[2] if has_begun else family.think
    thinks = [form.format(random_text(source))] if has_begun or name == "ernie" or source.random() < 0.7 else []
    says = [family.say.format(random_text(source))] if source.random() < 0.7 else []
    calls = [(source.choice(NAMES), random_arguments(source)) for _ in range(source.randrange(4))]
    written = (family.comma or family.between).join(family.call(*call) for call in calls)
    made = [family.calls.format(written) if family.calls else written] if calls else []
    return prompt, family.between.join([*thinks, *says, *made]) + family.last, calls
