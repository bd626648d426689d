"""Settings come from the command line, the environment and a file, in this order, and it can be seen from which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from atom_core import EngineArgs
from atom_core.config.options import options_of
from atom_server import ServerOptions
from atom_server.cli.main import build_parser, main


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "atom.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ATOM_")]:
        monkeypatch.delenv(name)


def engine_args(*arguments):
    return EngineArgs.from_cli_args(build_parser().parse_args(["serve", *arguments]), leave_out=("port",))


def printed(capsys, *arguments):
    assert main(["serve", *arguments, "--print-config"]) == 0
    return capsys.readouterr().out


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit):
        main(["serve", *arguments])
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_the_command_line_counts_before_the_environment_and_that_before_the_file(file, monkeypatch):
    path = file("max-num-seqs: 3\nmax-model-len: 300\nblock-size: 32\n")
    monkeypatch.setenv("ATOM_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("ATOM_MAX_MODEL_LEN", "200")
    args = engine_args("--config", path, "--max-num-seqs", "1")
    assert (args.max_num_seqs, args.max_model_len, args.block_size) == (1, 200, 32)


def test_the_command_line_counts_in_either_spelling(file):
    path = file("max-num-seqs: 3\n")
    assert engine_args("--config", path, "--max_num_seqs", "1").max_num_seqs == 1


def test_a_file_has_values_of_every_kind_and_names_in_either_case(file):
    path = file(
        "enforce_eager: true\nenable-prefix-caching: false\ngpu-memory-utilization: 0.5\nkv-cache-memory: 2GiB\n"
        "cudagraph-capture-sizes: [1, 2]\nspeculative-config: {method: ngram, num_speculative_tokens: 4}\n"
        "method: null\n"
    )
    args = engine_args("--config", path)
    assert (args.enforce_eager, args.enable_prefix_caching, args.gpu_memory_utilization) == (True, False, 0.5)
    assert (args.kv_cache_memory, args.cudagraph_capture_sizes) == (2 << 30, (1, 2))
    assert args.speculative_config == {"method": "ngram", "num_speculative_tokens": 4}
    assert args.method is None


def test_every_flag_has_a_variable(monkeypatch):
    values = {"switch": "true", "integers": "[1, 2]", "json": "{}", "bytes": "1GiB", "number": "1", "integer": "1"}
    options = {option.name: option for struct in (EngineArgs, ServerOptions) for option in options_of(struct)}
    for option in options.values():
        value = str(option.choices[-1]) if option.choices else values.get(option.kind, "x")
        monkeypatch.setenv(f"ATOM_{option.name.upper()}", value)
    found = build_parser().parse_args(["serve"])
    assert [name for name in options if getattr(found, name) is None] == []


def test_variables_leave_the_environment_but_those_that_are_read_elsewhere(monkeypatch):
    monkeypatch.setenv("ATOM_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("ATOM_API_KEY", "secret")
    build_parser().parse_args(["serve"])
    assert "ATOM_MAX_NUM_SEQS" not in os.environ
    assert os.environ["ATOM_API_KEY"] == "secret"


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("ATOM_MODEL", "")
    assert engine_args().model == EngineArgs().model


def test_a_level_of_the_log_may_be_in_capitals_as_the_engine_has_it(monkeypatch):
    monkeypatch.setenv("ATOM_LOG_LEVEL", "WARNING")
    assert build_parser().parse_args(["serve"]).log_level == "warning"


def test_commands_without_an_engine_read_no_variables(monkeypatch):
    monkeypatch.setenv("ATOM_PORT", "not a port")
    assert build_parser().parse_args(["bench", "serve"]).port == 8000


def test_what_is_printed_is_a_file_that_gives_the_same_settings(file, capsys, monkeypatch):
    arguments = ("--model", 'a "b" #c', "--no-enable-prefix-caching", "--speculative-config", '{"method": "ngram"}')
    before = engine_args(*arguments, "--block-size", "32")
    monkeypatch.setenv("ATOM_BLOCK_SIZE", "32")
    path = file(printed(capsys, *arguments))
    assert engine_args("--config", path) == before


def test_it_is_said_where_each_setting_comes_from(file, capsys, monkeypatch):
    monkeypatch.setenv("ATOM_BLOCK_SIZE", "32")
    monkeypatch.setenv("ATOM_MAX_REQUEST_LOGPROBS", "3")
    path = file("max-num-seqs: 3\nmax-model-len: 300\n")
    lines = printed(capsys, "--config", path, "--max_num_seqs", "1", "--max_request_logprobs=2").splitlines()
    assert {
        "max-request-logprobs: 2  # command line",
        "max-num-seqs: 1  # command line",
        "max-model-len: 300  # file",
        "block-size: 32  # environment, ATOM_BLOCK_SIZE",
        "port: 8000  # default",
        "# num-threads: unset",
        "# KV cache",
    } <= set(lines)


def test_keys_are_not_printed(capsys, monkeypatch):
    monkeypatch.setenv("ATOM_ADMIN_KEY", "hidden-admin")
    text = printed(capsys, "--api-key", "hidden-key")
    assert "hidden" not in text
    assert "# admin-key: not shown  # environment, ATOM_ADMIN_KEY" in text.splitlines()


def test_a_command_has_its_own_flags_in_the_file_too(file):
    found = build_parser().parse_args(["generate", "hello", "--config", file("temperature: 0.5\nchat: true\n")])
    assert (found.prompt, found.temperature, found.chat) == ("hello", 0.5, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-modle-len: 5", "has 'max-modle-len', which is no setting of atom serve; did you mean max-model-len?"),
        ("config: other.yaml", "has config, which is for command lines"),
        ("print_config: true", "has print-config, which is for command lines"),
        ("port: 1\nport-: 2\nmax_num_seqs: 1\nmax-num-seqs: 2", "has max-num-seqs twice"),
        ("- port", "is no mapping of settings, as `max-model-len: 4096` is, but list"),
        ("port: [1,", "is not YAML"),
        ("port: abc", "argument --port: port is 'abc'; it must be a whole number (file)"),
        ("mark-trace: maybe", "Unexpected value for mark-trace: 'maybe'"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_line(text, message, file, capsys):
    assert message in refusal(capsys, "--config", file(text))


def test_a_file_that_is_not_there_is_named(capsys):
    assert "/nowhere/atom.yaml" in refusal(capsys, "--config", "/nowhere/atom.yaml")


def test_a_variable_that_is_wrong_is_named(capsys, monkeypatch):
    monkeypatch.setenv("ATOM_PORT", "abc")
    assert refusal(capsys).endswith("port is 'abc'; it must be a whole number (environment, ATOM_PORT)")


def test_an_empty_file_changes_nothing(file):
    assert engine_args("--config", file("# nothing yet\n")) == engine_args()


def test_defaults_that_are_printed_are_those_of_the_structs(capsys):
    found = yaml.safe_load(printed(capsys))
    for option in options_of(ServerOptions):
        if option.default is not None:
            assert found[option.name.replace("_", "-")] == option.default


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "atom" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [("atom se", "serve"), ("atom serve --max-model", "--max-model-len"), ("atom serve --metrics-prefix v", "vllm")],
)
def test_a_shell_is_told_what_may_come_next(line, expected):
    command = f"exec 8>&1 1>/dev/null; exec {sys.executable} -m atom_server"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": " ",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    ran = subprocess.run(["bash", "-c", command], env=os.environ | asked, capture_output=True, text=True, timeout=60)
    assert expected in ran.stdout.split()
