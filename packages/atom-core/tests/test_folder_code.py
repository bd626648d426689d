"""`trust_remote_code`: code of a local folder reads its configuration and tokenizer, and nothing else of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from atom_core import LLMEngine, SamplingParams
from atom_core.config import ConfigError, EngineArgs
from atom_core.folder_code import FolderCodeError, as_data, code_that_ran, data_folder, describe
from atom_core.folder_code.converting import convert
from atom_core.folder_code.references import CodeReferenceError
from folder_with_code import CONFIG, leave_mark, make_folder_with_code, read, write
from tiny_models import make_tiny_llama

IN_PYTHON = """
from transformers import PreTrainedTokenizer

class MineTokenizer(PreTrainedTokenizer):
    vocab_size = 3
    def get_vocab(self): return {"a": 0, "b": 1, "c": 2}
    def _tokenize(self, text): return list(text)
    def _convert_token_to_id(self, token): return 0
    def _convert_id_to_token(self, index): return "a"
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The model, as data alone."""
    return make_tiny_llama(tmp_path / "plain")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same model, whose hidden size and vocabulary only its code finds."""
    return make_folder_with_code(tmp_path / "mine")


def texts_of(folder: Path, **settings: Any) -> list[str]:
    with LLMEngine(str(folder), num_kv_blocks=64, dtype="float32", **settings) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        return [output["text"] for output in engine.generate(["Hello there", "a b c"], params, use_tqdm=False)]


def test_a_folder_read_by_its_code_gives_the_texts_of_one_that_is_data(folder: Path, plain: Path):
    marks = [leave_mark(folder, name) for name in ("configuration_mine.py", "tokenization_mine.py")]
    assert texts_of(folder, trust_remote_code=True) == texts_of(plain)
    assert [mark.exists() for mark in marks] == [True, True]
    assert not (folder / "modeling_mine.py.ran").exists()


def test_no_code_runs_unless_it_is_asked_for(folder: Path):
    marks = [leave_mark(folder, name) for name in ("configuration_mine.py", "tokenization_mine.py", "pieces.py")]
    with pytest.raises(
        ValueError, match="code of the model's own, and there is no tokenizer.json: .* have it run by trust_remote_code"
    ):
        texts_of(folder)
    assert [mark.exists() for mark in marks] == [False] * 3


def test_what_code_found_is_data_and_the_files_that_ran_are_named(folder: Path):
    made = as_data(folder)
    assert made.name == folder.name
    assert read(made / "config.json")["hidden_size"] == read(folder / "config.json")["n_embd"]
    assert "auto_map" not in read(made / "config.json")
    assert list(made.glob("*.py")) == []
    assert (made / "model.safetensors").resolve() == folder / "model.safetensors"
    files = code_that_ran(made)
    assert files == ("configuration_mine.py", "tokenization_mine.py", "pieces.py")
    assert describe(files).startswith("ran configuration_mine.py, tokenization_mine.py, pieces.py of the model's")


def test_a_tokenizer_that_is_data_is_read_as_data(folder: Path):
    mark = leave_mark(folder, "tokenization_mine.py")
    (folder / "pieces.data").rename(folder / "tokenizer.json")
    assert code_that_ran(as_data(folder)) == ("configuration_mine.py",)
    assert not mark.exists()


def test_a_folder_without_code_runs_none(plain: Path):
    files = code_that_ran(as_data(plain))
    assert (files, describe(files)) == ((), "no code ran, since the folder is read without")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "model.gguf"])
def test_code_of_a_hub_or_of_a_file_is_refused(model: str):
    with pytest.raises(ConfigError, match=f"a local folder alone, and {model} is none: download it"):
        EngineArgs(model=model, trust_remote_code=True)


def test_ranks_of_other_nodes_have_nothing_of_it(folder: Path):
    with pytest.raises(ConfigError, match="on this node: leave out distributed_executor_backend ray"):
        EngineArgs(model=str(folder), trust_remote_code=True, distributed_executor_backend="ray")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("someone/else--configuration_mine.MineConfig", "code of another repository is never run"),
        ("../configuration_mine.MineConfig", "not a file and a class in it"),
        ("gone.MineConfig", "there is no gone.py in"),
    ],
)
def test_code_that_is_not_in_a_file_of_the_folder_is_refused(folder: Path, tmp_path: Path, named: str, reason: str):
    mark = leave_mark(folder, "configuration_mine.py")
    write(folder / "config.json", read(folder / "config.json") | {"auto_map": {"AutoConfig": named}})
    with pytest.raises(CodeReferenceError, match=reason):
        convert(folder, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["modeling_mine", "modeling_other", "network"])
def test_code_that_imports_code_of_a_model_is_refused_before_it_runs(folder: Path, tmp_path: Path, name: str):
    fields = read(folder / "config.json")
    fields["auto_map"]["AutoModelForCausalLM"] = f"{'network' if name == 'network' else 'modeling_mine'}.Mine"
    write(folder / "config.json", fields)
    marks = [leave_mark(folder, f"{name}.py")]
    (folder / "configuration_mine.py").write_text(f"from .{name} import x\n{CONFIG}")
    marks.append(leave_mark(folder, "configuration_mine.py"))
    with pytest.raises(CodeReferenceError, match=rf"{name}.py is code of a model, which is never run"):
        convert(folder, tmp_path)
    assert [mark.exists() for mark in marks] == [False, False]


def test_a_tokenizer_in_python_alone_is_refused_in_words(folder: Path):
    (folder / "tokenization_mine.py").write_text(IN_PYTHON)
    with pytest.raises(FolderCodeError, match=r"tokenization_mine.MineTokenizer is a tokenizer in Python alone"):
        as_data(folder)


def test_code_that_fails_is_told_in_its_own_words(folder: Path):
    (folder / "configuration_mine.py").write_text("raise RuntimeError('three\\nwords here')")
    with pytest.raises(FolderCodeError, match=rf"code of {folder} cannot be used: RuntimeError: three words here"):
        as_data(folder)


def test_code_that_does_not_end_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_folder, "TIME_LIMIT", 0.5)
    (folder / "configuration_mine.py").write_text("import time\ntime.sleep(1000)")
    with pytest.raises(FolderCodeError, match="did not end in 0.5 seconds"):
        as_data(folder)
