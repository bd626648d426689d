"""Folders of published embedding models: loaded, embedded by their own modules, and refused what they cannot do."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, PreTrainedTokenizerFast

from atom_core import InvalidRequestError, LLMEngine, SamplingParams
from atom_core.engine.embedding_model import EmbeddingModel
from atom_core.messages import Pooling
from atom_models import CheckpointError, load_model, open_checkpoint
from embedding_folder import EOS, PROMPTS, make_embedding_folder, write_json
from tiny_models import make_tiny_llama

TEXTS = ["a", "the hours of the sea", PROMPTS["query"] + " where is the stone " * 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedding_folder(tmp_path_factory.mktemp("embedding") / "m")


@pytest.fixture(scope="module")
def engine(folder: Path):
    engine = LLMEngine(model=str(folder), dtype="float32", num_kv_blocks=64)
    yield engine
    engine.close()


def reference_vectors(folder: Path, pooling: str) -> list[torch.Tensor]:
    """The arithmetic of `sentence-transformers`: tokenize, run, pool, normalize."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden_TD = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        pooled_D = {"lasttoken": hidden_TD[-1], "cls_token": hidden_TD[0], "mean_tokens": hidden_TD.mean(dim=0)}
        vectors.append(torch.nn.functional.normalize(pooled_D[pooling], dim=0))
    return vectors


def assert_same_vectors(found: list[list[float]], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-5, rtol=1e-4)


def test_texts_are_embedded_as_sentence_transformers_would(engine: LLMEngine, folder: Path):
    assert engine.tokenizer is not None
    assert engine.tokenizer.encode("a")[-1] == engine.tokenizer.token_to_id(EOS)
    assert_same_vectors(engine.embed(TEXTS), reference_vectors(folder, "lasttoken"))


@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens"])
def test_the_folders_own_pooling_is_used(pooling: str, tmp_path: Path):
    folder = make_embedding_folder(tmp_path / "m", tie=True, pooling=pooling, index=True)
    engine = LLMEngine(model=str(folder), dtype="float32", num_kv_blocks=64, max_num_batched_tokens=16)
    for _ in range(2):  # chunks, then chunks behind a cached prefix
        assert_same_vectors(engine.embed(TEXTS), reference_vectors(folder, pooling))
    engine.close()


def test_a_decoder_without_a_head_generates_nothing(engine: LLMEngine, folder: Path):
    with pytest.raises(InvalidRequestError, match="cannot generate: its checkpoint holds a decoder without a head"):
        engine.generate(["a"], SamplingParams(max_tokens=1), use_tqdm=False)
    with pytest.raises(ValueError, match="holds a decoder without a head: use hidden_states"):
        load_model(folder, "float32", progress=False).logits([[5]])


def test_the_hidden_states_of_a_loaded_model_are_those_of_transformers(folder: Path):
    [ours] = load_model(folder, "float32", progress=False).hidden_states([[5, 6, 7]])
    with torch.inference_mode():
        theirs = AutoModel.from_pretrained(folder, dtype=torch.float32)(torch.tensor([[5, 6, 7]])).last_hidden_state
    torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=1e-4)


def test_a_tied_decoder_has_a_head_and_a_whole_model_that_lost_its_own_is_damaged(tmp_path: Path):
    tied = make_embedding_folder(tmp_path / "tied", tie=True)
    assert open_checkpoint(tied).has_head
    assert LLMEngine(model=str(tied), num_kv_blocks=32).generate(["a"], SamplingParams(max_tokens=1), use_tqdm=False)
    from safetensors.torch import load_file, save_file

    whole = make_tiny_llama(tmp_path / "whole")
    weights = load_file(whole / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, whole / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(whole).has_head
    with pytest.raises(ValueError, match=r"1 missing weight: lm_head\.weight"):
        load_model(whole, progress=False)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
    ],
)
def test_both_spellings_of_a_pooling_are_read(config: dict, pooling: str, tmp_path: Path):
    assert read_pooling(config, tmp_path).choose_pooling(None).kind == pooling


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"pooling_mode_max_tokens": True}, "pools by max_tokens, which is not supported; choose a pooling"),
        ({"pooling_mode": ["mean", "cls"]}, "pools by mean and cls, which is not supported"),
        ({"pooling_mode_mean_tokens": False}, "pools by nothing"),
    ],
)
def test_a_pooling_that_cannot_be_done_is_refused_unless_a_request_chooses(config: dict, says: str, tmp_path: Path):
    model = read_pooling(config, tmp_path)
    assert model.choose_pooling("last").kind == "last"
    with pytest.raises(InvalidRequestError, match=says):
        model.choose_pooling(None)


def test_a_module_that_would_change_the_vectors_is_refused(tmp_path: Path):
    modules = [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    write_json(tmp_path / "modules.json", modules)
    with pytest.raises(InvalidRequestError, match=r"modules\.json has a Dense, which would change the vectors"):
        EmbeddingModel.read(tmp_path).choose_pooling(None)


def test_prompts_are_put_before_texts_and_named_at_start(engine: LLMEngine, folder: Path, tmp_path: Path, caplog):
    with caplog.at_level(logging.INFO):
        EmbeddingModel.read(folder)
    assert "prompt_name may be 'query'" in caplog.text
    assert engine.embed("where", prompt_name="query") == engine.embed(PROMPTS["query"] + "where")
    assert engine.embed("where", prompt_name="document") == engine.embed("where")
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"q": "Q: "}, "default_prompt_name": "q"})
    assert EmbeddingModel.read(tmp_path).prompt(None) == "Q: "


def test_a_prompt_that_the_model_does_not_have_or_does_not_pool_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="prompt_name is 'q'; this model has 'query', 'document'"):
        EmbeddingModel.read(folder).prompt("q")
    with pytest.raises(InvalidRequestError, match="this model has no prompts: leave 'prompt_name' out"):
        EmbeddingModel.read(tmp_path).prompt("q")
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling" / "config.json", {"include_prompt": False})
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"q": "Q: "}})
    assert EmbeddingModel.read(tmp_path).prompt(None) == ""
    with pytest.raises(InvalidRequestError, match="leaves its prompts out of the pooling"):
        EmbeddingModel.read(tmp_path).prompt("q")


def test_an_engine_refuses_a_checkpoint_in_the_words_of_the_plan(tmp_path: Path):
    from atom_models import model_requirements

    folder = make_tiny_llama(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"quantization_config": {"quant_method": "gptq", "bits": 3}})
    refusal = model_requirements(open_checkpoint(folder)).refusal
    assert refusal is not None
    with pytest.raises(CheckpointError) as refused:
        LLMEngine(model=str(folder))
    assert str(refused.value) == f"{folder}: {refusal}"


def read_pooling(config: dict, folder: Path) -> EmbeddingModel:
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", config)
    write_json(folder / "modules.json", [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
    return EmbeddingModel.read(folder)


@pytest.mark.parametrize(
    ("kinds", "mode", "expected"),
    [
        ([], "mean_tokens", Pooling("mean", normalizes=True)),
        (["Pooling", "Normalize"], "cls_token", Pooling("cls", normalizes=True)),
        (["Pooling"], "cls_token", Pooling("cls", normalizes=False)),
        (["Pooling", "Normalize"], "mean_sqrt_len_tokens", Pooling("mean", normalizes=True)),
    ],
)
def test_vectors_have_length_one_where_the_modules_say_so_or_there_are_none(kinds, mode, expected, tmp_path: Path):
    make_modules(kinds, mode, tmp_path)
    assert EmbeddingModel.read(tmp_path).choose_pooling(None) == expected


def test_a_sum_that_is_divided_otherwise_and_not_normalized_is_refused(tmp_path: Path):
    make_modules(["Pooling"], "mean_sqrt_len_tokens", tmp_path)
    with pytest.raises(InvalidRequestError, match="pools by mean_sqrt_len_tokens and does not normalize"):
        EmbeddingModel.read(tmp_path).choose_pooling(None)


def make_modules(kinds: list[str], mode: str, folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{mode}": True})
    modules = [{"path": "1_Pooling", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    if modules:
        write_json(folder / "modules.json", modules)
