"""`atom bench accuracy`: what formats cost a model on a text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from atom_core.models import ReferenceModel, load_model, open_checkpoint, resolve_model, windows_of
from atom_core.tokenization import Tokenizer
from atom_server.bench.origin import commit_of, origin
from atom_server.cli.main import main
from quantized_checkpoints import PUBLISHED, write_quantized

TEXT = Path(__file__).parents[3] / "tests/support/origin_of_species.txt"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT.read_text()[:600])
    return path


def measure(path: Path, *flags: object) -> dict:
    assert main(["bench", "accuracy", "--window", "64", *map(str, flags), "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_each_format_has_a_line_below_the_baseline(tiny_llama, text, tmp_path, capsys):
    flags = ("--model", tiny_llama, "--text", text, "--quantization", "int8", "mxfp4")
    result = measure(tmp_path / "found.json", *flags)
    plain, *others = result["results"]
    assert [row["quantization"] for row in result["results"]] == ["none", "int8", "mxfp4"]
    for row in others:
        assert row["perplexity_change"] == pytest.approx(row["perplexity"] / plain["perplexity"] - 1)
    assert 0 < others[0]["kl_divergence"] < others[1]["kl_divergence"]
    assert (result["window"], result["dtype"], result["text"]) == (64, "float32", "text.txt")
    title, *lines = capsys.readouterr().out.splitlines()[2:-2]
    assert title.split() == ["model", "weights", "KV", "cache", "tokens", "perplexity", "change", "KL", "top-1"]
    assert [line.split()[1] for line in lines] == ["none", "int8", "mxfp4"]
    assert lines[2].split()[-3:] == [
        f"{others[1]['perplexity_change']:+.2%}",
        f"{others[1]['kl_divergence']:.4f}",
        f"{others[1]['top1_agreement']:.1%}",
    ]


def test_a_file_says_of_which_commit_and_day_it_is(tiny_llama, text, tmp_path):
    flags = ("--model", tiny_llama, "--text", text, "--quantization", "int8")
    machine = measure(tmp_path / "found.json", *flags)["machine"]
    assert machine["commit"] == commit_of(Path(origin.__code__.co_filename))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", machine["date"])
    assert measure(tmp_path / "found.json", *flags, "--commit", "abc1234")["machine"]["commit"] == "abc1234"


def test_a_commit_is_that_of_the_checkout_which_has_the_file(tmp_path):
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file, other = tmp_path / "one.py", tmp_path / "installed.py"
    file.write_text("1")
    other.write_text("1")
    assert commit_of(file) is None
    git("init")
    git("add", "one.py")
    git("commit", "-m", "first")
    assert commit_of(file) == git("rev-parse", "--short", "HEAD")
    assert commit_of(other) is None
    file.write_text("2")
    assert commit_of(file) == git("rev-parse", "--short", "HEAD") + "+"


def test_a_cache_of_eight_bits_is_compared_with_the_models_own(tiny_llama, text, tmp_path):
    flags = ("--model", tiny_llama, "--text", text, "--kv-cache-dtype", "fp8")
    plain, other = measure(tmp_path / "found.json", *flags)["results"]
    assert [(row["quantization"], row["kv_cache_dtype"]) for row in (plain, other)] == [
        ("none", "auto"),
        ("stored", "fp8"),
    ]
    assert other["kl_divergence"] > 0


def test_a_quantized_checkpoint_is_compared_with_a_plain_one(tiny_llama, text, tmp_path):
    quantized, twin = write_quantized(tmp_path, tiny_llama, PUBLISHED["int8 rows"])
    against = {}
    for plain in (tiny_llama, twin):
        flags = ("--model", quantized, "--against", plain, "--text", text)
        against[plain] = measure(tmp_path / "found.json", *flags)["results"][1]["kl_divergence"]
    assert against[twin] < 1e-6 < against[tiny_llama]


def test_models_whose_tokens_differ_are_not_compared(tiny_llama, text, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = None
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    flags = ["--model", str(tiny_llama), "--against", str(other), "--text", str(text), "--window", "64"]
    assert main(["bench", "accuracy", *flags]) == 1
    assert "have tokenizers that differ, so that no token can be compared" in capsys.readouterr().err


def test_a_quantized_checkpoint_is_its_own_baseline_for_its_cache(tiny_llama, text, tmp_path):
    quantized, _ = write_quantized(tmp_path, tiny_llama, PUBLISHED["int8 rows"])
    flags = ("--model", quantized, "--text", text, "--kv-cache-dtype", "fp8")
    rows = measure(tmp_path / "found.json", *flags)["results"]
    assert [row["quantization"] for row in rows] == ["compressed-tensors", "stored"]
    assert rows[1]["kl_divergence"] > 0


@pytest.mark.parametrize(
    ("flags", "reason", "code"),
    [
        ((), "there is nothing to compare: name --quantization, --kv-cache-dtype fp8 or --against MODEL", 1),
        (
            ("--quantization", "int8", "int3"),
            "unknown quantization 'int3'; dense weights can be loaded as none, int8",
            3,
        ),
        (("--quantization", "int8"), "tokens and fills no window of 512", 1),
        (("--quantization", "int8", "--window", "4096"), "--window 4096 is longer than", 1),
        (("--quantization", "int8", "--json", "none/x.json"), "--json none/x.json: there is no folder none", 1),
        (("--quantization", "int8", "--text", "none.txt"), "none.txt: No such file", 1),
        (
            ("--quantization", "int8", "--window", "64", "--dtype", "int8"),
            "is not one of float32, bfloat16, float16",
            1,
        ),
    ],
)
def test_what_cannot_be_measured_is_told_before_a_model_is_loaded(flags, reason, code, tiny_llama, text, capsys):
    command = ["bench", "accuracy", "--model", str(tiny_llama), "--text", str(text), *flags]
    assert main(command) == code
    found = capsys.readouterr()
    assert reason in found.err
    assert not found.out


def test_bytes_that_are_no_text_are_refused(tiny_llama, tmp_path, capsys):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["bench", "accuracy", "--model", str(tiny_llama), "--text", str(path), "--quantization", "int8"]) == 1
    assert "weights.bin is not text in UTF-8" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.network
def test_eight_bits_cost_the_default_model_little():
    """Perplexity against plain weights, which read the text once for all; docs/quantization.md has the figures.

    In float32, as there: steps in bfloat16, which some machines prefer, move it by 0.1 % whatever the weights are in.
    """
    path = resolve_model("smollm2")
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(path))
    text = tokenizer.encode(TEXT.read_text()[1500:3000], add_special_tokens=False)
    windows = windows_of(text, 300, tokenizer.encode(""))
    load = partial(load_model, path, "float32", max_model_len=300)
    baseline = ReferenceModel(load(quantization="none"), windows)

    def change(quantization: str | None = None, kv_cache_dtype: str = "auto") -> float:
        model = load(quantization=quantization, kv_cache_dtype=kv_cache_dtype)
        return abs(baseline.measure(model, path.name).perplexity / baseline.perplexity - 1)

    assert change() < 0.001  # the file's own four bits, packed
    assert change("int8") < 0.01
    assert change("fp8") < 0.025
    assert change(kv_cache_dtype="fp8") < 0.02
    assert change(kv_cache_dtype="fp8_per_token_head") < 0.02
