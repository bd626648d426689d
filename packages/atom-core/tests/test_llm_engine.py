"""`LLMEngine` as its users see it, and the documented ways of using it."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from atom_core import (
    EngineArgs,
    EngineDeadError,
    InvalidRequestError,
    LLMEngine,
    ProfilerError,
    RequestOutput,
    SamplingParams,
)
from busy_machine import waiting_after

SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
DOCUMENTED_KEYS = {
    "text",
    "token_ids",
    "latency",
    "finish_reason",
    "num_tokens_input",
    "num_tokens_output",
    "ttft",
    "tpot",
}


def test_the_documented_synchronous_use_works(tiny_llama, capsys):
    engine = LLMEngine(model=str(tiny_llama), kv_cache_dtype="fp8", tensor_parallel_size=1)
    params = SamplingParams(temperature=0.6, max_tokens=16)
    outputs = engine.generate(["Explain quantum computing in simple terms."], params)
    for out in outputs:
        print(out["text"])
        assert set(out) >= DOCUMENTED_KEYS
    engine.print_mtp_statistics()
    engine.close()
    assert "speculative decoding is off" in capsys.readouterr().out


def test_the_documented_streaming_use_works(tiny_llama):
    engine = LLMEngine(model=str(tiny_llama))
    news: list[RequestOutput] = []
    engine.add_request(
        prompt_or_tokens_list=["Hello world", "How are you?"],
        sampling_params_list=SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True),
        stream_callback=news.append,
    )
    completed = []
    while not engine.is_finished():
        completed += engine.step()
    engine.close()
    assert len(completed) == 2
    assert len(news) == 24
    for output in completed:
        mine = [item for item in news if item.request_id == output["request_id"]]
        assert "".join(item.text_delta for item in mine) == output["text"]
        assert [item.finished for item in mine] == [False] * 11 + [True]


def test_an_engine_can_be_made_from_flags(tiny_llama):
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = parser.parse_args(["--model", str(tiny_llama), "--max-model-len", "64", "--dtype", "float32"])
    with EngineArgs.from_cli_args(args).create_engine() as engine:
        assert engine.info.max_model_len == 64


def test_the_documented_profiling_writes_a_trace(tiny_llama, tmp_path):
    engine = LLMEngine(model=str(tiny_llama), torch_profiler_dir=str(tmp_path), mark_trace=True)
    engine.start_profile()
    engine.generate(["a", "b"], SHORT, use_tqdm=False)
    engine.stop_profile()
    engine.close()
    (trace,) = (tmp_path / "rank_0").glob("*.pt.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert "decode[requests=2 tokens=2]" in names
    assert "sample" in names


def test_the_profiler_folder_may_come_from_the_environment(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOM_TORCH_PROFILER_DIR", str(tmp_path))
    monkeypatch.setenv("ATOM_PROFILER_MORE", "1")
    with LLMEngine(model=str(tiny_llama)) as engine:
        engine.start_profile()
        with pytest.raises(ProfilerError, match="already"):
            engine.start_profile()
        engine.generate(["a"], SHORT, use_tqdm=False)
        engine.stop_profile()
        with pytest.raises(ProfilerError, match="start one first"):
            engine.stop_profile()
    (trace,) = (tmp_path / "rank_0").glob("*.json.gz")
    assert b"Input Dims" in gzip.decompress(trace.read_bytes())


def test_profiling_without_a_folder_says_what_to_set(engine, monkeypatch):
    for call in (engine.start_profile, engine.stop_profile):
        with pytest.raises(ProfilerError, match=r"--torch-profiler-dir.*ATOM_TORCH_PROFILER_DIR"):
            call()


def test_default_parameters_are_the_documented_ones():
    params = SamplingParams()
    assert (params.temperature, params.max_tokens, params.ignore_eos, params.stop_strings) == (1.0, 64, False, None)


def test_prompts_may_be_texts_or_token_ids_with_parameters_for_each(engine):
    ids = engine.tokenizer.encode("hello")
    outputs = engine.generate(["hello", ids], [SHORT, SHORT], use_tqdm=False)
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"]
    assert engine.generate(ids, SHORT, use_tqdm=False)[0]["token_ids"] == outputs[0]["token_ids"]
    assert engine.generate("hello", SHORT, use_tqdm=False)[0]["text"] == outputs[0]["text"]
    with pytest.raises(InvalidRequestError, match="2 prompts and 1 sampling params"):
        engine.generate(["a", "b"], [SHORT], use_tqdm=False)


@pytest.mark.parametrize("text", ["\ud800", "fine so far \udc00 and on"])
def test_a_text_with_half_of_a_surrogate_pair_is_refused_before_anything_is_queued(engine, text):
    for call in (engine.generate, engine.add_request, engine.embed):
        with pytest.raises(InvalidRequestError, match="prompt holds half of a surrogate pair"):
            call(["good", text])
    assert engine.is_finished()


def test_no_prompts_give_no_outputs(engine):
    assert engine.generate([], SHORT, use_tqdm=False) == []


def test_outputs_count_and_time_their_tokens(engine):
    (output,) = engine.generate([[5] * 20], SHORT, use_tqdm=False)
    assert (output["num_tokens_input"], output["num_tokens_output"], len(output["token_ids"])) == (20, 8, 8)
    assert 0 < output["ttft"] <= output["latency"]
    assert output["tpot"] == pytest.approx((output["latency"] - output["ttft"]) / 7)


def test_cached_tokens_are_counted(engine):
    prompt = [444, *range(3, 60)]
    first, second = (engine.generate([prompt], SHORT, use_tqdm=False)[0] for _ in range(2))
    assert (first["num_cached_tokens"], second["num_cached_tokens"]) == (0, 48)


def test_text_is_that_of_the_tokens(engine):
    for output in engine.generate([[index + 3] for index in range(8)], SHORT, use_tqdm=False):
        assert engine.tokenizer.decode(output["token_ids"]).rstrip("\ufffd") == output["text"]


def test_a_stop_string_ends_the_text_and_frees_the_blocks(engine):
    whole = engine.generate([[9, 9]], SHORT, use_tqdm=False)[0]["text"]
    stop = whole[3:6]
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, stop_strings=[stop])
    (output,) = engine.generate([[9, 9]], params, use_tqdm=False)
    assert (output["text"], output["finish_reason"], output["stop_reason"]) == (whole[: whole.find(stop)], "stop", stop)
    while engine._core.has_unfinished():
        engine._core.step()
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


def test_requests_added_before_are_not_lost_to_generate(engine):
    (waiting,) = engine.add_request([[4, 5]], SHORT)
    outputs = engine.generate([[6, 7]], SHORT, use_tqdm=False)
    assert [output["request_id"] for output in outputs] != [waiting]
    later = []
    while not engine.is_finished():
        later += engine.step()
    assert [output["request_id"] for output in later] == [waiting]


def test_a_callback_is_told_of_every_sample_that_ends_in_a_step(engine):
    seen = []
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, n=3)
    engine.add_request([[4, 5]], params, stream_callback=seen.append)
    while not engine.is_finished():
        engine.step()
    assert [output.index for output in seen if output.finished] == [0, 1, 2]


def test_an_interrupt_leaves_an_engine_that_works(engine):
    def interrupt(output):
        raise KeyboardInterrupt

    expected = engine.generate([[4, 5]], SHORT, use_tqdm=False)
    request_ids = engine.add_request([[4, 5], [6]], SHORT, stream_callback=interrupt)
    engine.step()  # with one step ahead, the first tokens come with the second
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort(request_ids)
    assert engine.is_finished()
    assert engine.generate([[4, 5]], SHORT, use_tqdm=False)[0]["token_ids"] == expected[0]["token_ids"]


def test_a_progress_bar_shows_tokens_a_second(engine, capsys):
    engine.generate([[4], [5]], SHORT)
    assert "tokens/s" in capsys.readouterr().err
    engine.generate([[4], [5]], SHORT, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_without_a_tokenizer_there_are_tokens_only(make_engine, tiny_llama, tmp_path):
    for path in tiny_llama.iterdir():
        if not path.name.startswith(("tokenizer", "chat")):
            (tmp_path / path.name).symlink_to(path)
    engine = make_engine(tmp_path, skip_tokenizer_init=True)
    (output,) = engine.generate([[4, 5]], SHORT, use_tqdm=False)
    assert len(output["token_ids"]) == 8
    assert output["text"] == ""
    with pytest.raises(InvalidRequestError, match="token ids"):
        engine.generate(["text"], SHORT, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="stop needs a tokenizer"):
        engine.generate([[4]], SamplingParams(stop_strings=["x"]), use_tqdm=False)


def test_a_closed_engine_says_so(tiny_llama):
    engine = LLMEngine(str(tiny_llama))
    engine.close()
    engine.close()
    with pytest.raises(EngineDeadError, match="closed"):
        engine.generate([[4]], SHORT)


def test_dummy_weights_need_no_file(make_engine, tiny_llama, tmp_path):
    for path in tiny_llama.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).symlink_to(path)
    (output,) = make_engine(tmp_path, load_dummy=True).generate([[4, 5]], SHORT, use_tqdm=False)
    assert len(output["token_ids"]) == 8


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_worker_computes_with_the_threads_it_was_given(num_threads, make_engine):
    engine = make_engine(num_threads=num_threads)
    found: list[int] = []
    executor = engine._core._executor
    executor._thread.submit(lambda: found.append(torch.get_num_threads())).result()
    assert found == [num_threads]
    assert engine.info.num_threads == num_threads


def test_looking_at_the_machine_leaves_no_second_thread_pool_behind(tiny_llama):
    script = f"""
        import glob, time, torch
        from atom_core import EngineArgs
        from atom_core.engine.startup import open_model, resolve

        def count():
            return len(glob.glob("/proc/self/task/*"))

        before = count()
        args = EngineArgs(model={str(tiny_llama)!r})
        resolve(args, open_model(args))
        deadline = time.monotonic() + 20
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.05)  # threads that end take a moment
        print(count() > before)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["False"]


@pytest.mark.timing
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_threads_of_an_engine_sleep_on_a_busy_machine_although_torch_was_there_first(tiny_llama):
    code = f"""
        from atom_core import LLMEngine, SamplingParams
        with LLMEngine({str(tiny_llama)!r}, num_threads=2, dtype="float32", num_kv_blocks=64) as engine:
            while is_undecided():
                engine.generate([[1, 2, 3]], SamplingParams(max_tokens=64, ignore_eos=True), use_tqdm=False)
    """
    assert waiting_after(code) == "asleep"


def test_a_cache_that_no_kernel_reads_is_refused_at_start(make_engine, monkeypatch):
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    for asked in ("fp8", "fp8_per_token_head"):
        with pytest.raises(ValueError, match=r"no kernel here reads a cache of float8_e4m3fn.*choose another"):
            make_engine(kv_cache_dtype=asked)


def test_variables_that_nobody_reads_are_told_of_at_start(make_engine, monkeypatch, caplog):
    monkeypatch.setenv("ATOM_LOGLEVEL", "debug")
    monkeypatch.setenv("ATOM_USE_TRITON_GEMM", "1")
    with caplog.at_level("INFO", logger="atom_core"):
        make_engine()
    levels = {record.message: record.levelname for record in caplog.records}
    misspelt = "ATOM does not read the environment variable 'ATOM_LOGLEVEL': did you mean ATOM_LOG_LEVEL?"
    assert levels[misspelt] == "WARNING"
    assert levels["of no effect here, though ROCm/ATOM reads them: ATOM_USE_TRITON_GEMM"] == "INFO"


@pytest.mark.parametrize(
    ("asked", "kept"), [("fp8", "float8_e4m3fn"), ("fp8_per_token_head", "float8_e4m3fn_per_token_head")]
)
def test_an_fp8_cache_gives_the_same_tokens_to_a_prompt_that_it_has_cached(make_engine, asked, kept):
    engine = make_engine(kv_cache_dtype=asked)
    assert engine.info.kv_cache_dtype == kept
    first, again = (engine.generate([[4, 5, 6] * 20], SHORT, use_tqdm=False)[0] for _ in range(2))
    assert len(first["token_ids"]) == 8
    assert again["token_ids"] == first["token_ids"]


@pytest.mark.slow
@pytest.mark.network
def test_the_default_model_knows_the_capital_of_france():
    with LLMEngine("smollm2", dtype="bfloat16") as engine:
        (output,) = engine.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8))
    assert "Paris" in output["text"]


def test_engines_of_one_process_do_not_see_each_others_steps(make_engine, tiny_llama_tied):
    """Steps of one are in flight while the other starts, and while it runs."""
    prompts = ["One two three", "Something else"]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    alone = {}
    for name, options in (("first", {}), ("second", {"model": str(tiny_llama_tied)})):
        alone[name] = [out["token_ids"] for out in make_engine(**options).generate(prompts, params)]
    first, rounds, is_over = make_engine(), [], threading.Event()

    def generate_all_the_time():
        while not is_over.is_set():
            rounds.append([out["token_ids"] for out in first.generate(prompts, params)])

    with ThreadPoolExecutor(1) as thread:
        generating = thread.submit(generate_all_the_time)
        try:
            second = make_engine(model=str(tiny_llama_tied))
            for _ in range(3):
                assert [out["token_ids"] for out in second.generate(prompts, params)] == alone["second"]
        finally:
            is_over.set()
        generating.result(60)
    assert rounds == [alone["first"]] * len(rounds) != []


def test_tenants_of_an_engine_have_equal_shares(make_engine):
    engine = make_engine(max_num_seqs=1)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    greedy = engine.add_request([[4], [5], [6]], params, tenant="greedy", priority=-100)
    (modest,) = engine.add_request([[7]], params, tenant="modest")
    done = []
    while not engine.is_finished():
        done += [output["request_id"] for output in engine.step()]
    assert done == [greedy[0], modest, *greedy[1:]]
