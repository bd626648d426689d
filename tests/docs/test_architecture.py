"""docs/architecture.md says where things happen: each file is there and has the name, and calls go through it."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from atom_core import LLMEngine, SamplingParams, StructuredOutputParams
from atom_models import load_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TABLE = PAGE.partition("## Where it happens\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.*) \| `(\w[\w/]+\.py)` \| `(\w+)` \|$", TABLE, re.MULTILINE)
WHERE = {what: (file, name) for what, file, name in ROWS}


@pytest.mark.parametrize(("file", "name"), WHERE.values())
def test_what_the_page_names_is_there(file: str, name: str) -> None:
    package = file.partition("/")[0].replace("_", "-")
    tree = ast.parse((ROOT / "packages" / package / "src" / file).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert name in defined


def test_the_page_answers_what_a_newcomer_asks() -> None:
    assert len(WHERE) == len(TABLE.strip().splitlines()) - 2
    for question in ("sliding window", "captured whole", "penalty"):
        assert question in TABLE


class Calls:
    """Notes the functions that are called in threads that start while it is open, and in this one."""

    def __enter__(self) -> Calls:
        self._codes: set[CodeType] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def during(self, work: Callable[[], object]) -> set[tuple[str, str]]:
        """(file, name) of every function of ours that `work` called, and of the classes that they belong to."""
        self._codes.clear()
        work()
        ours = [code for code in [*self._codes] if "/src/atom_" in code.co_filename]
        return {(code.co_filename.partition("/src/")[2], name) for code in ours for name in code.co_qualname.split(".")}

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)


@pytest.fixture(scope="module")
def traced(tiny_llama: Path) -> Iterator[tuple[Calls, LLMEngine]]:
    with Calls() as calls, LLMEngine(model=str(tiny_llama), num_kv_blocks=16, block_size=16) as engine:
        yield calls, engine


def generate(engine: LLMEngine, prompt: list[int], **params: object) -> None:
    engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=4, **params))


@pytest.mark.parametrize(
    ("what", "params"),
    [
        ("a penalty is computed", {"presence_penalty": 0.5}),
        ("a stop string is found", {"stop_strings": ["\x00"]}),
        ("a request's bias, penalties and bans are put in order", {"logit_bias": {3: 1.0}}),
        ("a grammar's mask is made", {"structured_outputs": StructuredOutputParams(regex="a+")}),
    ],
)
def test_a_request_with_a_parameter_goes_where_the_page_says_and_one_without_does_not(traced, what, params) -> None:
    calls, engine = traced
    assert WHERE[what] in calls.during(lambda: generate(engine, [5, 6, 7], **params))
    assert WHERE[what] not in calls.during(lambda: generate(engine, [8, 9, 10]))


@pytest.mark.parametrize(
    "what",
    [
        "who runs in the next step, and how many tokens of each",
        "a waiting request gets its blocks",
        "a prompt finds the blocks of an earlier one",
        "masks, biases and penalties change logits",
        "a layer with a cache runs",
    ],
)
def test_every_request_goes_where_the_page_says(traced, what) -> None:
    calls, engine = traced
    assert WHERE[what] in calls.during(lambda: generate(engine, [1, 2, 3]))


@pytest.mark.parametrize(
    "what",
    [
        "an operator's implementation is chosen",
        "a layer with a cache gets its kernel and its cache layout",
        "linears and experts get the format in which they hold their weights",
        "a checkpoint that does not fit is refused, before a tensor is read",
    ],
)
def test_a_model_that_loads_goes_where_the_page_says(traced, tiny_llama, what) -> None:
    assert WHERE[what] in traced[0].during(lambda: load_model(tiny_llama))
