"""Tokenizers of folders and GGUF metadata, and their special tokens and chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from atom_core.tokenization import Tokenizer, TokenizerError
from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf
from atom_models import open_checkpoint, resolve_model
from gguf_tokenizer_metadata import make_gguf_metadata

HARD = [
    "",
    "Hello  world\n\n\t x",
    "½ Ⅷ ٣٤ 123 4567",
    "漢字かな交じり文 🙂👨‍👩‍👧",
    " naïve café 'll DON'T",
    "def f(x):\n    return x**2\r\n",
    "\u200b\u00a0 zero",
    " \r\n\r\n ",
]


@pytest.fixture
def folder(tiny_llama, tmp_path) -> Path:
    """A copy of the tiny model's tokenizer files, to be changed."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny_llama / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("text", HARD, ids=repr)
def test_decoding_gives_back_what_was_encoded(text, tiny_llama):
    tokenizer = Tokenizer.from_folder(tiny_llama)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("text", [*HARD, "<|im_start|>user\nhi<|im_end|>"], ids=repr)
def test_ids_are_those_of_transformers(text, tiny_llama):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tiny_llama)
    ours = Tokenizer.from_folder(tiny_llama)
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", [*HARD, "<|im_start|>user\nhi<|im_end|>"], ids=repr)
def test_a_gguf_vocabulary_gives_the_ids_of_the_folder_it_was_made_of(text, tiny_llama):
    ours, theirs = tokenizer_from_gguf(make_gguf_metadata(tiny_llama)), Tokenizer.from_folder(tiny_llama)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.special_tokens["eos_token"] == theirs.special_tokens["eos_token"]


@pytest.mark.slow
@pytest.mark.network
def test_the_default_models_vocabulary_gives_known_ids():
    # The ids of llama.cpp and of the tokenizer.json that transformers makes of the same file, with digits split.
    known = {
        "Hello  world\n\n\t x": [19556, 216, 905, 14436, 1792],
        "½ Ⅷ ٣٤ 123": [16738, 216, 173, 223, 117, 216, 164, 113, 164, 114, 216, 33, 34, 35],
        "漢字 🙂": [177, 137, 112, 36518, 47526],
        " naïve café 'll DON'T": [15486, 46494, 37366, 637, 764, 422, 2154, 23, 68],
        "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
    }
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(resolve_model("smollm2")))
    assert {text: tokenizer.encode(text) for text in known} == known


def test_smollm_splits_every_kind_of_digit(tiny_llama):
    smollm = tokenizer_from_gguf(make_gguf_metadata(tiny_llama, **{"tokenizer.ggml.pre": "smollm"}))
    pieces = [piece for piece, _ in smollm.backend.pre_tokenizer.pre_tokenize_str("12٣Ⅷ")]
    assert len(pieces) == 4


def test_a_gguf_file_can_ask_for_a_beginning_token(tiny_llama):
    with_bos = tokenizer_from_gguf(make_gguf_metadata(tiny_llama, **{"tokenizer.ggml.add_bos_token": True}))
    assert with_bos.encode("a")[0] == 1
    assert with_bos.encode("a", add_special_tokens=False)[0] != 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.model": "t5"}, "kind 't5'"),
        ({"tokenizer.ggml.pre": "martian"}, "'martian', which is unknown"),
    ],
)
def test_a_gguf_vocabulary_of_an_unknown_kind_says_so(changes, message, tiny_llama):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(make_gguf_metadata(tiny_llama, **changes))


def test_the_template_beside_the_tokenizer_is_read(folder):
    (folder / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.from_folder(folder).chat_template == "from the file"


def test_a_template_in_the_config_is_read_one_or_several(folder):
    (folder / "chat_template.jinja").unlink()
    write_config(folder, chat_template="one")
    assert Tokenizer.from_folder(folder).chat_template == "one"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write_config(folder, chat_template=named)
    assert Tokenizer.from_folder(folder).chat_templates == {"default": "a", "tool_use": "b"}
    write_config(folder)
    assert Tokenizer.from_folder(folder).chat_template is None


def test_special_tokens_are_read_as_text_or_as_objects_under_any_class_name(folder):
    write_config(
        folder, tokenizer_class="NobodyKnowsThis", eos_token={"content": "<|im_end|>"}, bos_token="<|im_start|>"
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.bos_token == "<|im_start|>"


def test_a_folder_without_tokenizer_json_says_what_it_has(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer.json.*skip_tokenizer_init"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.model").touch()
    with pytest.raises(TokenizerError, match=r"has tokenizer\.model but no tokenizer\.json"):
        Tokenizer.from_folder(folder)
    write_config(folder, auto_map={"AutoTokenizer": ["code.py", None]})
    with pytest.raises(TokenizerError, match="by trust_remote_code"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(("name", "text"), [("tokenizer.json", "{"), ("tokenizer_config.json", "[1]")])
def test_a_broken_file_is_named(name, text, folder):
    (folder / name).write_text(text)
    with pytest.raises(TokenizerError, match=name):
        Tokenizer.from_folder(folder)


def test_a_tokens_text_and_bytes_are_its_own(tiny_llama):
    tokenizer = Tokenizer.from_folder(tiny_llama)
    for text in HARD:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.id_to_bytes, ids)) == text.encode()
    assert tokenizer.id_to_text(2) == "<|im_end|>"
    assert tokenizer.id_to_text(10**6) == ""


def write_config(folder: Path, **entries) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(entries))
