"""`LLMEngine` with two engines in processes: what it gives is what one engine gives, and nothing is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom_core import EngineStartError, InvalidRequestError, LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.config import ConfigError
from child_processes import children_of

SMALL = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 16, "num_threads": 1, "seed": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def two(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMEngine]:
    """Two engines for the tests that leave them as they found them."""
    folder = tmp_path_factory.mktemp("traces")
    with LLMEngine(str(tiny_llama), data_parallel_size=2, torch_profiler_dir=str(folder), **SMALL) as engine:
        yield engine


def test_two_engines_generate_what_one_does(two: LLMEngine, engine: LLMEngine):
    prompts = [[3 + index] * 20 for index in range(6)]
    params = [
        *[GREEDY] * 3,
        SamplingParams(seed=3, max_tokens=12, ignore_eos=True, n=3),
        SamplingParams(seed=4, max_tokens=20, structured_outputs=StructuredOutputParams(regex="[a-f]{3,9}")),
        SamplingParams(temperature=0.0, max_tokens=30, stop_strings=["a"]),
    ]
    found, expected = (each.generate(prompts, params, use_tqdm=False) for each in (two, engine))
    for key in ("token_ids", "text", "finish_reason", "index"):
        assert [output[key] for output in found] == [output[key] for output in expected]
    assert two.is_finished()


def test_embeddings_are_those_of_one(two: LLMEngine, engine: LLMEngine):
    prompts = [[3 + index] * 20 for index in range(4)]
    assert two.embed(prompts) == engine.embed(prompts)


def test_callbacks_hear_of_every_token(two: LLMEngine):
    heard: dict[str, list[int]] = {}

    def hear(output) -> None:
        heard.setdefault(output.request_id, []).extend(output.output_tokens)

    request_ids = two.add_request([[3] * 20, [4] * 20], GREEDY, hear)
    finished = []
    while not two.is_finished():
        finished += two.step()
    assert {output["request_id"]: output["token_ids"] for output in finished} == heard
    assert sorted(heard) == sorted(request_ids)


def test_aborted_requests_leave_nothing(two: LLMEngine):
    request_ids = two.add_request([[3 + index] * 20 for index in range(4)], LONG)
    two.step()
    two.abort(request_ids)
    assert two.is_finished()
    assert two.stats.num_free_blocks == two.stats.num_blocks == 512


def test_requests_that_cannot_be_served_are_refused(two: LLMEngine):
    with pytest.raises(InvalidRequestError):
        two.generate([[3], []], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        two.generate(
            [[3]], SamplingParams(structured_outputs=StructuredOutputParams(json={"const": 10**30})), use_tqdm=False
        )
    assert two.is_finished()


def test_traces_of_both_are_written(two: LLMEngine):
    two.start_profile()
    two.generate([[3] * 20, [4] * 20], GREEDY, use_tqdm=False)
    two.stop_profile()
    traces = Path(two.info.profiler_dir or "").glob("*/*.gz")
    assert sorted(trace.parent.name for trace in traces) == ["dp0_tp0", "dp1_tp0"]


def test_what_a_killed_engine_had_ends_with_an_error_and_the_rest_is_generated(two: LLMEngine):
    request_ids = two.add_request([[3 + index] * 20 for index in range(4)], LONG)
    two.step()
    first, second = (status.pid for status in two._core.engines)
    os.kill(second, signal.SIGKILL)
    finished = {}
    while not two.is_finished():
        finished |= {output["request_id"]: output for output in two.step()}
    assert [finished[request_id]["finish_reason"] for request_id in request_ids] == ["length", "error"] * 2
    assert "engine 1 died: the engine's process was ended by SIGKILL" in finished[request_ids[1]]["error"]
    assert two.generate([[3] * 20], GREEDY, use_tqdm=False)[0]["finish_reason"] == "length"
    two.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (first, second))


def test_settings_that_do_not_fit_are_refused_in_one_line(tiny_llama: Path):
    with pytest.raises(ConfigError, match="max_model_len is 4096; the model was made for at most 512"):
        LLMEngine(str(tiny_llama), data_parallel_size=2, max_model_len=4096)


@pytest.mark.slow
def test_a_start_that_fails_has_the_words_of_one_engine_and_leaves_no_process(tiny_llama: Path):
    before = children_of(os.getpid(), "core_process")
    with pytest.raises(EngineStartError, match="^the KV cache is too small for one request"):
        LLMEngine(str(tiny_llama), data_parallel_size=2, **SMALL | {"num_kv_blocks": 4}, max_model_len=512)
    assert children_of(os.getpid(), "core_process") == before
