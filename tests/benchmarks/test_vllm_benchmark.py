"""vLLM with our plugin and without it is asked for the same, and only full rounds of outputs are timed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chart, report, tables, vllm_plugin, vllm_side


class Engine:
    """An engine of vLLM's that takes a round for each prompt before it decodes, as a small token budget has it."""

    model_config = SimpleNamespace(get_vocab_size=lambda: 300)

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.waiting: list[str] = []

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.requests[name] = SimpleNamespace(left=params.max_tokens, tokens=[], prompt=prompt["prompt_token_ids"])
        self.waiting.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        if self.waiting:
            self.waiting.pop(0)
        running = [name for name in self.requests if name not in self.waiting]
        outputs = []
        for name in running:
            request = self.requests[name]
            request.tokens.append(len(request.tokens))
            request.left -= 1
            outputs.append(SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=list(request.tokens))]))
            if not request.left:
                del self.requests[name]
        return outputs


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> vllm_side.VllmSide:
    engine = Engine()
    stub = SimpleNamespace(LLM=lambda **_: SimpleNamespace(llm_engine=engine), SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", stub)
    monkeypatch.setattr(vllm_side, "SECONDS_TO_SLEEP", 0.0)
    return vllm_side.VllmSide("model")


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 3), (4, 5)])
def test_a_turn_of_decodes_has_as_many_steps_as_were_asked_for(side: Any, batch_size: int, steps: int) -> None:
    side.prepare("decoder", batch_size=batch_size, context=7)
    assert len(side.turn(2, steps)) == steps
    assert len(side.turn(2, steps)) == steps


def test_prefills_are_timed_whole_and_never_repeat_a_prompt(side: Any) -> None:
    side.prepare("prefiller", num_tokens=9)
    assert len(side.turn(1, 4)) == 4


def test_the_continuation_is_that_of_the_engine(side: Any) -> None:
    assert side.greedy([5, 6], 4) == [0, 1, 2, 3]


def test_stock_vllm_is_the_one_without_us() -> None:
    assert vllm_plugin.SIDES[vllm_plugin.STOCK] == {"ATOM_DISABLE_VLLM_PLUGIN": "1"}
    assert vllm_plugin.SIDES["atom"] == {}


def test_without_an_environment_the_benchmark_says_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    assert main(["vllm", "--model", "m", "--python", "/nowhere/python"]) == 1
    assert "python tools/vllm_environment.py" in capsys.readouterr().out


def test_the_page_shows_the_saved_results() -> None:
    text = (chart.ROOT / "docs" / "vllm.md").read_text()
    saved = [tables.vllm_table(document) for document in report.load_all("vllm")]
    assert report.fill_marks(text, saved) == text, "run `python -m benchmarks chart`"
