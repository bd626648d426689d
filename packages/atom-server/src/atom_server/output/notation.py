"""`CallNotation`: how a family of models writes calls. One table serves the parser and the grammar alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaggedStyle:
    """Arguments as values between tags.

    Attributes:
        key, after_key: around a parameter's name.
        value, after_value: around its value, which is bare text for strings and JSON for everything else. A line break
            that `after_value` begins with is written before the value too.
        text_value: takes the place of `value` before strings, where the tags themselves tell those apart.
    """

    key: str
    after_key: str
    value: str
    after_value: str
    text_value: str = ""


@dataclass(frozen=True)
class BareKeysStyle:
    """Arguments as an object after the name: its keys are bare, its strings stand between `quote` and `quote`."""

    quote: str


@dataclass(frozen=True)
class CallNotation:
    """The marks of a family, with the white space that its templates write; readers do not ask for the white space.

    A section of calls is ``begin (call name after_name arguments call_end)+ end``, with `separator` between calls.
    Without `begin` each call stands for itself.

    Attributes:
        style: "object" for ``{"name": ..., "arguments": ...}`` after `call`; "json" for a name with JSON arguments;
            or how tagged arguments, or objects with bare keys, are written.
        name_key, arguments_key: the keys of a call, for "object".
        is_numbered: a colon and the call's number follow a name.
        repeats: calls of one turn share a section; else each has its own.
        id_length: how long ids are that the template takes, all letters and digits; 0 leaves them free.
    """

    call: str
    call_end: str = ""
    after_name: str = ""
    begin: str = ""
    end: str = ""
    separator: str = "\n"
    style: Literal["object", "json"] | TaggedStyle | BareKeysStyle = "object"
    name_key: str = "name"
    arguments_key: str = "arguments"
    is_numbered: bool = False
    repeats: bool = True
    id_length: int = 0

    @property
    def trigger(self) -> str:
        """The mark that begins the calls; "" where only a JSON object does."""
        return (self.begin or self.call).partition(" ")[0].strip()

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that may hold a special token."""
        quote = self.style.quote if isinstance(self.style, BareKeysStyle) else ""
        return (self.begin, self.call, self.after_name, self.call_end, self.end, quote)


_QWEN_TAGS = TaggedStyle("<parameter=", ">", "", "\n</parameter>\n")
_GLM_TAGS = TaggedStyle("<arg_key>", "</arg_key>\n", "<arg_value>", "</arg_value>\n")
_GLM47_TAGS = TaggedStyle("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_MINIMAX_TAGS = TaggedStyle('<parameter name="', '">', "", "</parameter>\n")
_DSML_TAGS = TaggedStyle(
    '<｜DSML｜parameter name="', '" string="', 'false">', "</｜DSML｜parameter>\n", text_value='true">'
)


def _dsml(section: str) -> CallNotation:
    begin, end = f"<｜DSML｜{section}>\n", f"\n</｜DSML｜{section}>"
    return CallNotation('<｜DSML｜invoke name="', "</｜DSML｜invoke>", '">\n', begin=begin, end=end, style=_DSML_TAGS)


NOTATIONS: dict[str, CallNotation] = {
    # Hermes 2 Pro, Qwen 2.5, Qwen 3
    "hermes": CallNotation("<tool_call>\n", "\n</tool_call>"),
    # Llama 3.1 and later; the mark before it may be left out
    "json": CallNotation("", separator="; ", arguments_key="parameters"),
    # Mistral up to its third tokenizer, and what came after it
    "mistral-json": CallNotation("", begin="[TOOL_CALLS] [", end="]", separator=", ", id_length=9),
    "mistral": CallNotation("[TOOL_CALLS]", after_name="[ARGS]", style="json", separator="", id_length=9),
    # DeepSeek V3 and R1; V3.1
    "deepseek-v3": CallNotation(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```<｜tool▁call▁end｜>", "\n```json\n",
        begin="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>", style="json",
    ),
    "deepseek-v31": CallNotation(
        "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
        begin="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>", style="json", separator="",
    ),
    # DeepSeek V3.2; V4
    "deepseek-v32": _dsml("function_calls"),
    "deepseek-v4": _dsml("tool_calls"),
    # FunctionGemma, which is a Gemma 3; Gemma 4
    "gemma": CallNotation(
        "<start_function_call>call:", "<end_function_call>", separator="", style=BareKeysStyle("<escape>")
    ),
    "gemma-4": CallNotation("<|tool_call>call:", "<tool_call|>", separator="", style=BareKeysStyle('<|"|>')),
    # GLM 4.5 and 4.6; 4.7 and later
    "glm": CallNotation("<tool_call>", "</tool_call>", "\n", style=_GLM_TAGS),
    "glm-47": CallNotation("<tool_call>", "</tool_call>", separator="", style=_GLM47_TAGS),
    "kimi": CallNotation(
        "<|tool_call_begin|>functions.", "<|tool_call_end|>", "<|tool_call_argument_begin|>",
        begin="<|tool_calls_section_begin|>", end="<|tool_calls_section_end|>",
        style="json", separator="", is_numbered=True,
    ),
    "qwen3-coder": CallNotation(
        "<function=", "</function>", ">\n", begin="<tool_call>\n", end="\n</tool_call>", style=_QWEN_TAGS, repeats=False
    ),
    "minimax": CallNotation(
        '<invoke name="', "</invoke>", '">\n',
        begin="<minimax:tool_call>\n", end="\n</minimax:tool_call>", style=_MINIMAX_TAGS,
    ),
}  # fmt: skip

# A chat template uses the first one all of whose texts it holds; GPT-OSS has channels, see `harmony.py`.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("kimi", ("<|tool_calls_section_begin|>",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("deepseek-v4", ("<｜DSML｜tool_calls",)),
    ("deepseek-v32", ("<｜DSML｜",)),
    ("gemma", ("<start_function_call>",)),
    ("gemma-4", ("<|tool_call>call:",)),
    ("deepseek-v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek-v31", ("<｜tool▁calls▁begin｜>",)),
    ("qwen3-coder", ("<function=",)),
    ("glm-47", ("</arg_key><arg_value>",)),
    ("glm", ("<arg_key>",)),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral-json", ("[TOOL_CALLS]",)),
    ("hermes", ("<tool_call>",)),
)
FORMATS = ("harmony", *NOTATIONS)


def format_of(template: str) -> str:
    """The name of the format that a chat template writes; "json" where it shows none."""
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), "json")
