"""The `atom` command: sub-commands, and errors that end with their cause."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import subprocess
import sys

import pytest

from atom_core import EngineArgs, LLMEngine
from atom_core.config import ConfigError
from atom_core.failure import Failure
from atom_server import ServerOptions
from atom_server.cli.endings import failure_of
from atom_server.cli.main import build_parser, main
from atom_server.examples import simple_inference
from quantized_checkpoints import PUBLISHED, write_quantized

FLOAT32 = ("--dtype", "float32", "--num-threads", "1", "--num-kv-blocks", "64")


def last_line(stderr):
    assert "Traceback" not in stderr, stderr
    return stderr.strip().splitlines()[-1]


def test_flags_are_read_in_kebab_and_in_snake_case():
    for flags in (
        ["--kv_cache_dtype", "fp8", "--server_port", "9", "--served_model_name", "a,b", "--max_model_len", "64"],
        ["--kv-cache-dtype", "fp8", "--server-port", "9", "--served-model-name", "a,b", "--max-model-len", "64"],
    ):
        args = build_parser().parse_args(["serve", *flags])
        engine, server = EngineArgs.from_cli_args(args), ServerOptions.from_cli_args(args)
        assert (engine.kv_cache_dtype, engine.max_model_len) == ("fp8", 64)
        assert (server.server_port, server.served_model_names) == (9, ("a", "b"))


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ([], 8000),
        (["--port", "9000"], 9000),
        (["--port", "0"], 0),
        (["--server-port", "9000"], 9000),
        (["--port", "8006", "--server-port", "9000"], 9000),
        (["--server-port", "9000", "--port", "8006"], 9000),
        (["--port", "8006", "--server-port", "0"], 0),
    ],
    ids=str,
)
def test_a_port_is_that_of_http_and_upstreams_own_name_for_it_wins(flags, port):
    args = build_parser().parse_args(["serve", *flags])
    assert ServerOptions.from_cli_args(args).port == port


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("flag", ["--port", "--server-port"])
def test_the_server_listens_on_the_port_that_is_asked_for(flag, taken_port, capsys):
    assert main(["serve", flag, str(taken_port)]) == 4
    assert f"port {taken_port} on 127.0.0.1 is in use" in capsys.readouterr().err


def test_a_port_that_is_left_aside_is_said_to_be(taken_port, capsys):
    assert main(["serve", "--port", "8006", "--server-port", str(taken_port)]) == 4
    assert "--port 8006 is left aside" in capsys.readouterr().err


def test_server_defaults_are_safe():
    options = ServerOptions()
    assert (options.host, options.port, options.max_body_mb, options.drain_timeout) == (
        "127.0.0.1",
        8000,
        16,
        30,
    )


@pytest.mark.parametrize(
    "settings", [{"port": 70000}, {"server_port": 70000}, {"max_body_mb": 0}, {"drain_timeout": -1}, {"log_level": "x"}]
)
def test_server_options_that_cannot_be_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServerOptions(**settings)


def test_errors_for_people_are_shown_as_they_are_and_others_with_their_kind():
    assert failure_of(ConfigError("block_size is 3; it must be 1")).line == "block_size is 3; it must be 1"
    assert failure_of(KeyError("x")).line.startswith("KeyError: 'x' (the full trace: /")
    missing = FileNotFoundError(2, "No such file or directory", "a.jinja")
    assert failure_of(missing).line == "a.jinja: No such file or directory"


def test_code_of_a_folder_that_is_not_here_is_refused_in_one_line(capsys):
    assert main(["serve", "--trust-remote-code", "--model", "Qwen/Qwen3-8B"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "trust_remote_code runs code of a local folder alone, and Qwen/Qwen3-8B is none" in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            "",
            "torchrun started 2 processes, and tensor_parallel_size 1 with pipeline_parallel_size 1 has 1 ranks: give",
        ),
        ("-tp 2 -dp 2", "torchrun starts the ranks of one engine, by itself: leave out data_parallel_size"),
    ],
)
def test_ranks_that_torchrun_did_not_start_are_refused_in_one_line(flags, says, monkeypatch, capsys):
    told = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**told, "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--model", "./nowhere", *flags.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_wrong_flag_is_answered_without_a_wall_of_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--max-model-len", "abc"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


class TestModelsThatCannotBeLoaded:
    """Each ends with a non-zero code and the cause as the last line, whatever the engine's process says before it.

    The process tells the server what `Failure.of` makes of the error. So it is started for one error of a model and one
    of settings, and the others are asked of an engine in this process.
    """

    @pytest.fixture
    def refuse(self, capfd):
        def last_line_of(model, *flags, code=3):
            assert main(["serve", "--model", str(model), "--server-port", "0", *FLOAT32, *map(str, flags)]) == code
            return last_line(capfd.readouterr().err)

        return last_line_of

    def test_missing(self, refuse, tmp_path):
        assert "nowhere" in refuse(tmp_path / "nowhere")

    def test_a_folder_without_a_config(self, refuse, tmp_path):
        assert "config.json" in refuse(tmp_path)

    def test_an_unsupported_architecture(self, tiny_llama, tmp_path):
        model = self.copied(tiny_llama, tmp_path)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
        assert self.kind_of("NoSuchModel", model) == "model"

    def test_truncated_weights(self, refuse, tiny_llama, tmp_path):
        model = self.copied(tiny_llama, tmp_path)
        [weights] = model.glob("*.safetensors")
        weights.write_bytes(weights.read_bytes()[:-5000])
        assert weights.name in refuse(model)

    def test_corrupt_weights(self, tiny_llama, tmp_path):
        model = self.copied(tiny_llama, tmp_path)
        [weights] = model.glob("*.safetensors")
        weights.write_bytes(b"\xff" * 4096)
        assert self.kind_of(weights.name, model) == "model"

    def test_missing_weights(self, tiny_llama, tmp_path):
        model = self.copied(tiny_llama, tmp_path)
        [weights] = model.glob("*.safetensors")
        weights.unlink()
        assert self.kind_of("safetensors", model) == "model"

    def test_a_corrupt_gguf_file(self, refuse, tmp_path):
        (tmp_path / "x.gguf").write_bytes(b"GGUF" + b"\xff" * 64)
        assert "x.gguf" in refuse(tmp_path / "x.gguf")

    def test_a_cache_too_small_for_one_request(self, refuse, tiny_llama):
        line = refuse(tiny_llama, "--num-kv-blocks", "2", "--max-model-len", "512", code=2)
        assert "max_model_len" in line or "block" in line

    def test_a_cache_larger_than_the_machine(self, tiny_llama):
        assert self.kind_of("num_kv_blocks asks for", tiny_llama, num_kv_blocks=1_000_000_000) == "settings"

    def test_a_chat_template_that_does_not_parse(self, refuse, tiny_llama, tmp_path):
        (tmp_path / "bad.jinja").write_text("{% if %}")
        assert "does not parse" in refuse(tiny_llama, "--chat-template", tmp_path / "bad.jinja", code=2)

    def kind_of(self, words, model, **settings):
        """The kind of the failure that has these words."""
        given = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 64} | settings
        with pytest.raises(Exception, match=re.escape(words)) as caught:
            LLMEngine(str(model), **given)
        return Failure.of(caught.value).kind

    def copied(self, model, folder):
        return shutil.copytree(model, folder / "model")


def test_generate_completes_a_prompt(tiny_llama, capfd):
    flags = ["--model", str(tiny_llama), "--temperature", "0", "--max-tokens", "8", *FLOAT32]
    assert main(["generate", "Hello", *flags]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("Hello")
    assert "tokens, first after" in last_line(err)


def test_generate_refuses_what_cannot_be(tiny_llama, capfd):
    assert main(["generate", "Hello", "--model", str(tiny_llama), "--temperature", "-1", *FLOAT32]) == 2
    assert "temperature" in last_line(capfd.readouterr().err)


def test_chat_answers_turn_after_turn(tiny_llama, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n/clear\nhello again\n/exit\nnever read\n"))
    assert main(["chat", "--model", str(tiny_llama), "--temperature", "0", "--max-tokens", "6", *FLOAT32]) == 0
    assert capfd.readouterr().out.count("\n") >= 2
    assert sys.stdin.readline() == "never read\n"


def test_plan_needs_the_config_alone(tiny_llama, tmp_path, capsys):
    shutil.copy(tiny_llama / "config.json", tmp_path)
    flags = ["--memory", "1GiB", "--context", "128", "--requests", "4"]
    assert main(["plan", "--model", str(tmp_path), *flags]) == 0
    out = capsys.readouterr().out
    for part in ("LlamaForCausalLM", "planned: 4 x 128 tokens", "float32", "yes"):
        assert part in out


def test_plan_says_when_nothing_fits(tiny_llama, capsys):
    assert main(["plan", "--model", str(tiny_llama), "--memory", "10K"]) == 1
    assert " yes " not in capsys.readouterr().out


def test_doctor_tells_how_each_kind_of_layer_is_kept(tiny_llama, capsys):
    assert main(["doctor", "--model", str(tiny_llama), "--quantization", "int8"]) == 0
    title, *blocks, total = capsys.readouterr().out.strip().split("\n\n")
    assert title.splitlines()[0] == f"weights of {tiny_llama}"
    assert title.splitlines()[1].strip() == "run by our own layers (our file of LlamaForCausalLM)"
    told = {block.splitlines()[0].partition(":")[0].strip(): block.splitlines()[1:] for block in blocks}
    assert told["2 x model.layers.*.mlp.down_proj"][0].strip() == "stored as float32, kept as int8 per row"
    assert told["2 x model.layers.*.mlp.down_proj"][1].strip().startswith("linear: ")
    assert told["1 x lm_head"][0].strip() == "stored as float32"
    each = [float(block.splitlines()[0].rpartition(": ")[2].removesuffix(" MiB")) for block in blocks]
    assert float(total.rpartition(": ")[2].removesuffix(" MiB")) == pytest.approx(sum(each), abs=0.1 * len(each))


def test_doctor_tells_the_rule_of_a_quantized_checkpoint(tmp_path, tiny_llama, capsys):
    quantized, _ = write_quantized(tmp_path, tiny_llama, PUBLISHED["int8 rows"])
    assert main(["doctor", "--model", str(quantized)]) == 0
    assert "stored as int8 per row (meant by 'Linear')" in capsys.readouterr().out


def test_doctor_refuses_a_format_that_nobody_knows(tiny_llama, capsys):
    assert main(["doctor", "--model", str(tiny_llama), "--quantization", "int3"]) == 3
    assert "unknown quantization 'int3'" in capsys.readouterr().err


def test_doctor_tells_machine_versions_and_caches(capsys):
    assert main(["doctor", "--no-operators"]) == 0
    out = capsys.readouterr().out
    for part in ("machine", "cores", "atom-kernels", "torch", "kept in"):
        assert part in out


def test_models_are_listed_with_the_format_of_their_published_weights(capsys):
    assert main(["models", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "ForCausalLM" in line}
    assert " mxfp4 " in rows["GptOssForCausalLM"]
    assert " fp8 " in rows["DeepseekV3ForCausalLM"]
    assert " bfloat16 " in rows["Qwen3ForCausalLM"]
    assert "refused" not in "".join(rows.values())


def test_models_are_listed_with_their_licenses(capsys):
    assert main(["models", "list"]) == 0
    text = capsys.readouterr().out
    assert "smollm2" in text
    assert "Apache-2.0" in text


def test_architectures_are_listed_with_their_models_and_features(capsys):
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    llama = next(line for line in lines if line.startswith("LlamaForCausalLM "))
    assert "Llama 2, 3, 3.1" in llama
    qwen = next(line for line in lines if line.startswith("Qwen2ForCausalLM "))
    assert "QKV bias, sliding window" in qwen


def test_a_path_is_asked_of_the_cache_and_nothing_is_downloaded(capsys):
    assert main(["models", "path", "somebody/no-such-model"]) == 1
    assert "atom models pull somebody/no-such-model" in capsys.readouterr().err


def test_simple_inference_answers_four_prompts(tiny_llama, capsys):
    assert simple_inference.main(["--model", str(tiny_llama), "--max-tokens", "4", *FLOAT32]) == 0
    out = capsys.readouterr().out
    assert out.count("Prompt: ") == out.count("Completion: ") == 4


def test_the_openai_server_module_is_atom_serve():
    command = [sys.executable, "-m", "atom_server.entrypoints.openai_server", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "--port" in done.stdout
    assert "--server-port" in done.stdout
    assert "--kv-cache-dtype" in done.stdout
