"""The kinds of mistakes: what is made of a few lines of code, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutate.mutation import mutations_of
from tools.mutate.operators import ADAPTER_OPERATORS, GENERAL_OPERATORS
from tools.mutate.unseen import UNSEEN_KEYWORDS

# A line inside of a loop of a function -> kind, what is edited, into what.
EXAMPLES = {
    "x = a < b": {("comparison", "a < b", "a <= b")},
    "x = a == b != c": {
        ("comparison", "a == b != c", "a != b != c"),
        ("comparison", "a == b != c", "a == b == c"),
    },
    "x = a is not None": {("comparison", "a is not None", "a is None")},
    "x = (a + b) * c": {
        ("arithmetic", "(a + b) * c", "(a + b) + c"),
        ("arithmetic", "a + b", "a - b"),
    },
    "x += a": {("arithmetic", "x += a", "x -= a"), ("left out", "x += a", "pass")},
    "x = 'a' + a": set(),
    "x = a and (b or c)": {
        ("truth", "a and (b or c)", "a or (b or c)"),
        ("truth", "b or c", "b and c"),
    },
    "x = not a": {("truth", "not a", "a")},
    "x = False": {("truth", "False", "True")},
    "x = b if a else c": {("condition", "a", "(not (a))")},
    "x = [b for b in c if b]": {("condition", "b", "(not (b))")},
    "x = 3": {("number", "3", "4")},
    "x = 0.5": {("number", "0.5", "1.0")},
    "x = a[b:]": {("number", "b", "(b) + 1")},
    "x = -a": {("number", "-a", "a")},
    "x = a['key']": {("key", "'key'", "'key_'")},
    "x = a.get('key')": {("key", "'key'", "'key_'")},
    "x = f(a, b)": {("arguments", "a, b", "b, a")},
    "x = a.min()": {("function", "a.min", "a.max")},
    "x = min(a, b, c)": {("function", "min", "max")},
    "x = sorted(a)": {("step left out", "sorted(a)", "(a)")},
    "x = a.transpose()": {("step left out", "a.transpose()", "(a)")},
    "self.x = a": {("left out", "self.x = a", "pass")},
    "f(a)": {("left out", "f(a)", "pass")},
    "continue": {("went on", "continue", "pass")},
    "return a": {("went on", "return a", "pass")},
    "raise ValueError(f'{a} < 3', 3)": {("left out", "raise ValueError(f'{a} < 3', 3)", "pass")},
    "logger.info('%d', 3)": set(),
    "return logger.error('%d', 3)": {("went on", "return logger.error('%d', 3)", "pass")},
    "raise NotImplementedError": set(),
    "x: Literal['a', 3]": set(),
    "x = f'{a + 3}'": set(),
}


def edits_of(path: Path, text: str, operators=GENERAL_OPERATORS) -> set[tuple[str, str, str]]:
    path.write_text(text)
    return {(mutation.kind, mutation.before, mutation.after) for mutation in mutations_of(path, operators)}


@pytest.mark.parametrize("line", EXAMPLES)
def test_mistakes_are_made_of_a_line(line: str, tmp_path: Path):
    text = f'def run(self, a, b, c):\n    """Takes 3, not 4."""\n    for x in c:\n        {line}\n'
    assert edits_of(tmp_path / "code.py", text) == EXAMPLES[line]


@pytest.mark.parametrize("keyword", UNSEEN_KEYWORDS)
def test_a_keyword_that_nobody_could_see_is_left_alone(keyword: str, tmp_path: Path):
    """Each has its reason beside it; the same value under another name is a mistake to find."""
    path, text = tmp_path / "code.py", "class Options(Struct, {0}=True): ...\n\nx = f({0}=3)\n"
    assert edits_of(path, text.format(keyword)) == set()
    assert edits_of(path, text.format("seen")) == {("truth", "True", "False"), ("number", "3", "4")}


def test_defaults_of_parameters_and_fields_become_others(tmp_path: Path):
    text = "class Options:\n    size: int = 3\n    is_on: bool = False\n\ndef f(name='a', *, limit=2.5): ...\n"
    edits = {edit for edit in edits_of(tmp_path / "code.py", text) if edit[0] == "default"}
    assert edits == {
        ("default", "3", "4"),
        ("default", "False", "True"),
        ("default", "'a'", "'a_'"),
        ("default", "2.5", "3.5"),
    }


def test_an_adapters_arguments_layouts_shuffles_and_scales_are_mistaken(tmp_path: Path):
    text = (
        "def run(self, x):\n"
        "    call = library().bind('f', 'k_scale', 'v_scale', causal=True)\n"
        "    return call(shuffle(x.permute(0, 2, 1)), self.scale)\n"
    )
    assert {edit[1:] for edit in edits_of(tmp_path / "adapter.py", text, ADAPTER_OPERATORS)} == {
        ("'k_scale', 'v_scale'", "'v_scale', 'k_scale'"),
        ("True", "False"),
        ("shuffle(x.permute(0, 2, 1))", "x.permute(0, 2, 1)"),
        ("x.permute(0, 2, 1)", "x"),
        ("0, 2", "2, 0"),
        ("2, 1", "1, 2"),
        ("self.scale", "(2.0 * self.scale)"),
    }
