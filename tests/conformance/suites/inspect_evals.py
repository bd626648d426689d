# /// script
# requires-python = ">=3.11"
# dependencies = ["inspect-ai==0.3.285", "openai==3.54.0"]
# ///
"""Inspect: an evaluation with a scorer, and one whose solver calls a tool, both to their end without an error."""

from __future__ import annotations

from typing import Any

import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolFunction, tool


@tool
def weather():
    async def execute(unit: str):
        """The weather here.

        Args:
            unit: C or F.
        """
        return f"21 {unit}"

    return execute


@pytest.fixture(scope="module")
def served(url: str, model: str) -> Any:
    return get_model(
        f"openai-api/local/{model}",
        base_url=url + "/v1",
        api_key="none",
        config=GenerateConfig(max_tokens=24, temperature=0, max_retries=0, max_connections=2),
    )


def run(task: Task, served: Any, folder: str) -> Any:
    (log,) = eval(task, model=served, log_dir=folder, display="plain", score=True)
    assert log.status == "success", log.error
    return log


def test_an_evaluation_scores_every_sample(served, tmp_path):
    samples = [
        Sample("Repeat the word hello.", target="hello"),
        Sample("What is the capital of France?", target="Paris"),
    ]
    log = run(Task(dataset=samples, solver=generate(), scorer=includes()), served, str(tmp_path))
    assert log.results.completed_samples == 2
    assert all(sample.output.completion for sample in log.samples)
    assert log.stats.model_usage[next(iter(log.stats.model_usage))].output_tokens > 0


def test_a_tool_is_called_by_a_solver(served, tmp_path):
    solver = [use_tools(weather(), tool_choice=ToolFunction("weather")), generate(tool_calls="single", max_tokens=100)]
    log = run(Task(dataset=[Sample("How is the weather?")], solver=solver), served, str(tmp_path))
    calls = [call for message in log.samples[0].messages for call in getattr(message, "tool_calls", None) or []]
    assert calls
    assert calls[0].function == "weather"
    assert calls[0].parse_error is None
    assert any(message.role == "tool" for message in log.samples[0].messages)
