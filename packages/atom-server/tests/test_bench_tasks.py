"""`atom bench accuracy --tasks`: lm-eval asks the server, and its scores are kept beside speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from atom_server import ServerOptions
from atom_server.bench.outcome import BenchError
from atom_server.bench.tasks.evaluation import Evaluation, arguments, scores_of
from atom_server.bench.tasks.own_server import own_server
from atom_server.cli.main import main

# Takes lm-eval's flags, asks the server one question as lm-eval does, and writes a file of its form.
STAND_IN = """\
#!{python}
import json, os, pathlib, sys, urllib.request
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
asked = dict(part.split("=", 1) for part in flags["--model_args"].split(","))
body = json.dumps({{"model": asked["model"], "prompt": "2 + 2 =", "max_tokens": 2, "temperature": 0}}).encode()
headers = {{"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
answer = json.load(urllib.request.urlopen(urllib.request.Request(asked["base_url"], body, headers)))
entry = {{"alias": "sums", "acc,none": answer["usage"]["completion_tokens"] / 8, "acc_stderr,none": 0.125}}
written = {{"results": {{"sums": entry}}, "n-shot": {{"sums": int(flags["--num_fewshot"])}},
           "n-samples": {{"sums": {{"original": 9, "effective": int(flags["--limit"])}}}}}}
folder = pathlib.Path(flags["--output_path"]) / asked["model"].replace("/", "__")
folder.mkdir()
(folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps(written))
"""


@pytest.fixture
def lm_eval(tmp_path: Path) -> str:
    path = tmp_path / "lm_eval"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def test_scores_of_a_running_server_are_kept_and_shown_on_the_dashboard(server, lm_eval, tmp_path, capsys):
    file, page = tmp_path / "found.json", tmp_path / "page.html"
    flags = ["--tasks", "sums", "--num-fewshot", "5", "--limit", "3", "--lm-eval", lm_eval, "--json", str(file)]
    assert main(["bench", "accuracy", "--base-url", server.url, *flags]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["sums", "acc", "none", "0.2500", "0.1250", "5", "3"]
    document = json.loads(file.read_text())
    [score] = document["results"]
    assert (score["task"], score["value"], score["stderr"], score["num_samples"]) == ("sums", 0.25, 0.125, 3)
    assert document["machine"]["date"]
    assert main(["bench", "dashboard", str(file), "--output", str(page)]) == 0
    assert "<td>sums</td><td>acc, none</td><td>0.2500</td><td>0.1250</td>" in page.read_text()


def test_a_key_is_sent_and_stands_on_no_command_line(make_front, lm_eval, tiny_llama, tmp_path, monkeypatch, capsys):
    flags = ["--tasks", "sums", "--num-fewshot", "0", "--limit", "1", "--lm-eval", lm_eval]
    monkeypatch.setenv("ATOM_API_KEY", "secret")
    with make_front(ServerOptions(api_key="secret")) as front:
        command = ["bench", "accuracy", "--base-url", front.url, *flags]
        assert main(command) == 1
        assert "where keys are asked for" in capsys.readouterr().err
        assert main([*command, "--tokenizer", str(tiny_llama)]) == 0
    made = arguments(Evaluation(command="lm_eval", tasks=("t",), tokenizer="f"), front.url, "m")
    assert "secret" not in " ".join(made)


@pytest.mark.slow
def test_without_a_url_a_server_of_the_model_is_started(tiny_llama, lm_eval, tmp_path):
    file = tmp_path / "found.json"
    flags = ["--model", str(tiny_llama), "--quantization", "int8", "--lm-eval", lm_eval, "--json", str(file)]
    assert main(["bench", "accuracy", *flags, "--tasks", "sums", "--num-fewshot", "0", "--limit", "1"]) == 0
    [score] = json.loads(file.read_text())["results"]
    assert (score["quantization"], score["value"]) == ("int8", 0.25)


def test_a_server_that_does_not_start_is_told_by_its_last_line(tmp_path):
    with pytest.raises(BenchError, match="no-such-model"), own_server(["--model", str(tmp_path / "no-such-model")]):
        pass


def test_lm_eval_is_asked_as_the_guides_of_the_original_ask_it():
    made = arguments(Evaluation(command="lm_eval", tasks=("gsm8k",), num_fewshot=5), "http://h:1/", "m")
    given = "model=m,base_url=http://h:1/v1/completions,num_concurrent=64,max_retries=3,tokenized_requests=False"
    expected = ["--model", "local-completions", "--model_args", f"{given},tokenizer_backend=remote"]
    assert made == [*expected, "--tasks", "gsm8k", "--num_fewshot", "5"]
    chat = arguments(Evaluation(command="lm_eval", tasks=("a", "b"), chat=True), "http://h:1", "m")
    assert (chat[1], chat[5], chat[-1]) == ("local-chat-completions", "a,b", "--apply_chat_template")


def test_each_metric_and_way_of_reading_is_a_score():
    entries = {
        "alias": "t",
        "exact_match,strict-match": 0.5,
        "exact_match_stderr,strict-match": "N/A",
        "exact_match,flexible-extract": 0.75,
        "exact_match_stderr,flexible-extract": 0.1,
    }
    scores = list(scores_of({"results": {"t": entries}}, "m"))
    assert [(score.filter, score.value, score.stderr) for score in scores] == [
        ("strict-match", 0.5, None),
        ("flexible-extract", 0.75, 0.1),
    ]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "either a text by --text FILE, or tasks by --tasks TASK"),
        (["--tasks", "t", "--text", "x.txt"], "either a text by --text FILE, or tasks by --tasks TASK"),
        (["--tasks", "t", "--lm-eval", "no-lm-eval"], "pip install 'lm-eval[api]', or name it by --lm-eval"),
        (["--tasks", "t", "--against", "m"], "tasks measure one model in one format"),
        (["--tasks", "t", "--base-url", "http://h", "--dtype", "float32"], "names a server that runs already"),
        (["--tasks", "t", "--base-url", "nowhere", "--lm-eval", sys.executable], "does not say which model it serves"),
        (["--tasks", "t", "--json", "none/x.json"], "--json none/x.json: there is no folder none"),
    ],
)
def test_what_cannot_be_asked_is_told_at_once(flags, reason, capsys):
    assert main(["bench", "accuracy", *flags]) == 1
    assert reason in capsys.readouterr().err
