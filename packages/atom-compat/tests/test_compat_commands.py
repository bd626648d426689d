"""Every command and import of ROCm/ATOM's documentation runs as it is written there, on a tiny model and on SmolLM2."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atom_server
from atom_core import EngineArgs
from atom_core.config import ConfigError
from atom_server.bench.tasks.own_server import own_server
from atom_server.cli import doctor
from atom_server.cli.main import build_parser
from atom_server.traces import read_trace

ROOT = Path(__file__).parents[3]
# The commands, but for the shell's own words; MODEL takes the place of their models.
SERVERS = [
    "--model MODEL --kv_cache_dtype fp8",
    "--model MODEL --kv_cache_dtype fp8 -tp 8",
    "--kv_cache_dtype fp8 -tp 8 --model MODEL",
    "--model MODEL --kv_cache_dtype fp8 --host 0.0.0.0 --server-port 8000",
    "--model MODEL --kv_cache_dtype fp8 -tp 8 --torch-profiler-dir ./trace --mark-trace",
    "--model MODEL --kv_cache_dtype fp8 -tp 8 --method mtp --num-speculative-tokens 1",
]
BENCHMARKS = [
    "--model=MODEL --backend=vllm --base-url=http://localhost:8000 --dataset-name=random --random-input-len=1024 "
    "--random-output-len=1024 --random-range-ratio 0.8 --num-prompts=1280 --max-concurrency=128 --request-rate=inf "
    "--ignore-eos --save-result --percentile-metrics=ttft,tpot,itl,e2el --result-dir=./ --result-filename=r.json",
    "--backend vllm --model MODEL --base-url http://localhost:8000 --dataset-name random --random-input-len 1024 "
    "--random-output-len 128 --num-prompts 1000 --request-rate inf --ignore-eos",
    "--model MODEL --backend vllm --base-url http://localhost:8000 --dataset-name random --num-prompts 100 --profile",
]
SMALL = "--dtype float32 --num-threads 1 --num-kv-blocks 64 --max-model-len 128"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """``run(module, flags)``: what ``python -m module flags`` exits with."""

    def start(module: str, flags: str) -> Any:
        monkeypatch.setattr(sys, "argv", [module, *shlex.split(flags)])
        for name in [name for name in sys.modules if name.startswith("atom_server.examples.")]:
            monkeypatch.delitem(sys.modules, name)  # other tests of this process import what is run here
        with pytest.raises(SystemExit) as exit_code:
            runpy.run_module(module, run_name="__main__")
        return exit_code.value.code

    return start


@pytest.fixture(params=["tiny_llama", pytest.param("smollm2_path", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Path:
    """A model of a few kilobytes, and a real one."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("flags", SERVERS)
def test_flags_of_the_server_mean_something(flags: str):
    args = build_parser().parse_args(["serve", *shlex.split(flags)])
    assert (args.model, args.kv_cache_dtype) == ("MODEL", "fp8")
    assert EngineArgs.from_cli_args(args, leave_out=["port"]).kv_cache_dtype == "fp8"


@pytest.mark.parametrize("flags", BENCHMARKS)
def test_flags_of_the_benchmark_mean_something(flags: str):
    args = build_parser().parse_args(["bench", "serve", *shlex.split(flags)])
    assert args.base_url == "http://localhost:8000"


def test_the_server_is_ours(run, capsys):
    before = signal.getsignal(signal.SIGINT)
    assert run("atom.entrypoints.openai_server", "--model ./no-such-model --kv_cache_dtype fp8") == 3
    assert "no-such-model" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_the_benchmark_is_ours(run, capsys):
    assert run("atom.benchmarks.benchmark_serving", "--model m --base-url http://127.0.0.1:9 --num-prompts 1") == 1
    assert "127.0.0.1" in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmarks_run_against_a_server_that_leaves_a_trace(run, model, tmp_path, monkeypatch):
    """As the guides have it, but for the lengths and the number of prompts, which are small here."""
    monkeypatch.chdir(tmp_path)
    profiled = f"--kv_cache_dtype fp8 --torch-profiler-dir ./trace --mark-trace {SMALL}"
    with own_server(["--model", str(model), *profiled.split()]) as url:
        for flags in BENCHMARKS:
            flags = re.sub(r"((?:input|output)-len[ =])\d+", r"\g<1>12", flags).replace("http://localhost:8000", url)
            flags = re.sub(r"(num-prompts[ =])\d+", r"\g<1>3", flags).replace("MODEL", str(model))
            flags += "" if "input-len" in flags else " --random-input-len 12 --random-output-len 4"
            assert run("atom.benchmarks.benchmark_serving", flags) == 0
    assert json.loads(Path("r.json").read_text())["completed"] == 3
    traces = list(Path("trace").glob(f"*/{model.name}_ts_*.json.gz"))
    assert traces
    assert all(read_trace(trace).matrices for trace in traces)


def test_simple_inference_answers_its_four_prompts(run, model, capsys):
    flags = f"--model {model} --kv_cache_dtype fp8 --temperature 0.6 --max-tokens 2 {SMALL}"
    assert run("atom.examples.simple_inference", flags) == 0
    assert capsys.readouterr().out.count("Completion: ") == 4


def test_offline_profiling_writes_traces_that_the_tool_reads(run, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = f"--model {model} --kv_cache_dtype fp8 --random-input --input-length 24 --output-length 4 --bs 4 {SMALL}"
    assert run("atom.examples.profile_offline", f"{flags} --mark-trace") == 0
    [trace] = Path("profiler_traces").glob("*/*.json.gz")
    assert f"written: {trace}" in capsys.readouterr().out
    pytest.importorskip("openpyxl")
    monkeypatch.setattr(sys, "argv", ["parse_trace.py", str(trace), "--layer", "1"])
    with pytest.raises(SystemExit) as exit_code:
        runpy.run_path(str(ROOT / "tools" / "parse_trace.py"), run_name="__main__")
    assert exit_code.value.code == 0
    assert Path("prefill_breakdown.xlsx").exists()
    assert Path("decode_breakdown.xlsx").exists()


def test_the_documented_snippet_runs(tiny_llama):
    from atom import LLMEngine, SamplingParams

    engine = LLMEngine(model=str(tiny_llama), kv_cache_block_size=16, num_kvcache_blocks=64, compilation_config=0)
    params = SamplingParams(temperature=0.6, max_tokens=4)
    [output] = engine.generate(["Explain quantum computing in simple terms."], params)
    told = {"text", "token_ids", "latency", "finish_reason", "num_tokens_input", "num_tokens_output", "ttft", "tpot"}
    assert told <= output.keys()
    news: list[Any] = []
    engine.add_request(
        prompt_or_tokens_list=["Hello world", "How are you?"],
        sampling_params_list=SamplingParams(temperature=0.8, max_tokens=3, stop=["never said"], ignore_eos=True),
        stream_callback=news.append,
    )
    completed = []
    while not engine.is_finished():
        completed += engine.step()
    engine.print_mtp_statistics()
    engine.close()
    assert (len(completed), len(news)) == (2, 6)


def test_stop_is_another_name_of_stop_strings():
    from atom import SamplingParams

    assert SamplingParams(stop="a").stop_strings == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert SamplingParams(stop="a") == SamplingParams(stop_strings=["a"])
    with pytest.raises(ValueError, match="mean the same"):
        SamplingParams(stop="a", stop_strings=["b"])


def test_other_names_of_settings_are_taken():
    args = EngineArgs.from_keywords(
        kv_cache_block_size=32,
        num_kvcache_blocks=-1,
        compilation_config={"level": 1, "use_cudagraph": False, "splitting_ops": ["x"]},
    )
    assert (args.block_size, args.num_kv_blocks, args.level, args.enforce_eager) == (32, None, 1, True)
    from atom import EngineArgs as TheirArgs

    assert TheirArgs(kv_cache_block_size=32, num_kvcache_blocks=8).num_kv_blocks == 8


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"block_size": 16, "kv_cache_block_size": 32}, "block_size is given twice, the second time as kv_cache"),
        ({"compilation_config": {"levels": 3}}, "has the unknown field 'levels'"),
        ({"compilation_config": "3"}, "compilation_config is '3'"),
    ],
)
def test_other_names_that_do_not_fit_are_refused(keywords, reason):
    with pytest.raises(ConfigError, match=reason):
        EngineArgs.from_keywords(**keywords)


@pytest.mark.parametrize(
    "module", ["atom.model_engine.llm_engine", "atom.model_engine.arg_utils", "atom.sampling_params"]
)
def test_module_paths_are_there(module: str):
    assert importlib.import_module(module)


def test_the_doctor_says_whose_the_name_is(tmp_path, monkeypatch):
    assert doctor.owner_of_atom().startswith("ours, ")
    (tmp_path / "atom").mkdir()
    (tmp_path / "atom" / "__init__.py").write_text("from atom.model_engine.llm_engine import LLMEngine\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "atom"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.owner_of_atom().startswith(f"NOT ours: {tmp_path}")


def test_the_distribution_is_of_the_same_version_and_asked_for_alone():
    project = tomllib.loads((ROOT / "packages/atom-compat/pyproject.toml").read_text())["project"]
    extras = tomllib.loads((ROOT / "packages/atom-server/pyproject.toml").read_text())["project"]
    version = atom_server.__version__
    assert project["version"] == version
    assert f"atom-server=={version}" in project["dependencies"]
    assert extras["optional-dependencies"]["compat"] == [f"atom-compat=={version}"]
    assert "atom-compat" not in " ".join(extras["dependencies"])
