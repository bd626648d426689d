"""Opening checkpoints: both generations of configs, and every way in which a folder can be wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atom_models import CheckpointError, open_checkpoint
from atom_models.checkpoint.config_fields import normalize_config
from atom_models.checkpoint.weight_names import INDEX, weight_names
from tiny_models import make_tiny_llama


def make_folder(path, config=None, **files):
    path.mkdir()
    if config is not None:
        (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


@pytest.mark.parametrize("rope", ["default", "llama3", "yarn", "linear", "dynamic", "longrope"])
def test_both_generations_of_a_config_open_alike(tmp_path, rope):
    old = open_checkpoint(make_tiny_llama(tmp_path / "old", rope=rope, old_style=True))
    new = open_checkpoint(make_tiny_llama(tmp_path / "new", rope=rope))
    assert old.config == new.config
    assert new.config["rope_parameters"]["rope_type"] == rope
    assert new.dtype == "float32"


def test_the_oldest_spellings_of_rope_scaling_are_understood():
    config = normalize_config({"rope_theta": 5e5, "rope_scaling": {"type": "su", "factor": 2.0}})
    assert config["rope_parameters"] == {"rope_type": "longrope", "rope_theta": 5e5, "factor": 2.0}
    assert "rope_scaling" not in config
    assert "rope_theta" not in config


@pytest.mark.parametrize(("old", "new"), [("su", "longrope"), ("ntk", "dynamic"), ("mrope", "default")])
def test_rope_types_have_the_names_of_today(old, new):
    assert normalize_config({"rope_scaling": {"rope_type": old}})["rope_parameters"]["rope_type"] == new


@pytest.mark.parametrize(
    ("given", "name"),
    [("torch.bfloat16", "bfloat16"), ("half", "float16"), ("float", "float32"), ("float16", "float16")],
)
def test_dtypes_have_torchs_names(given, name):
    assert normalize_config({"torch_dtype": given}) == {"dtype": name}


def test_a_number_of_turned_dimensions_becomes_their_share_of_the_head():
    config = normalize_config({"rope_theta": 1e4, "rotary_dim": 32, "head_dim": 128})
    assert config["rope_parameters"]["partial_rotary_factor"] == 0.25


def test_fields_that_moved_into_the_rope_parameters_are_moved():
    config = normalize_config({"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert config["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_rope_parameters_by_layer_type_keep_their_form():
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    normalized = normalize_config({"rope_parameters": rope})["rope_parameters"]
    assert normalized["full_attention"] == {"rope_theta": 1e6, "rope_type": "default"}


def test_a_nested_text_config_is_normalized_too():
    config = normalize_config({"torch_dtype": "bfloat16", "text_config": {"rope_theta": 7.0}})
    assert config["text_config"]["rope_parameters"]["rope_theta"] == 7.0
    assert config["text_config"]["dtype"] == "bfloat16"


def test_what_either_level_says_of_quantization_and_tied_embeddings_is_said_of_the_text_model():
    given = {"quant_method": "fp8"}
    config = normalize_config({"tie_word_embeddings": True, "text_config": {"quantization_config": given}})
    assert config["quantization_config"] == given
    assert config["text_config"]["tie_word_embeddings"] is True


def test_a_text_models_own_word_on_tied_embeddings_stands():
    config = normalize_config({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}})
    assert config["text_config"]["tie_word_embeddings"] is False


def test_facts_of_a_nested_model_are_those_of_its_text_config(tmp_path):
    text = {"max_position_embeddings": 77, "eos_token_id": 5, "torch_dtype": "float16"}
    checkpoint = open_checkpoint(make_folder(tmp_path / "m", {"model_type": "outer", "text_config": text}))
    assert (checkpoint.max_model_len, checkpoint.eos_token_ids, checkpoint.dtype) == (77, (5,), "float16")


def test_the_dtype_of_the_whole_model_goes_before_that_of_its_text(tmp_path):
    config = {"model_type": "outer", "torch_dtype": "bfloat16", "text_config": {"torch_dtype": "float16"}}
    assert open_checkpoint(make_folder(tmp_path / "m", config)).dtype == "bfloat16"


def test_names_of_weights_are_those_of_the_index_else_of_the_files(tmp_path):
    folder = make_tiny_llama(tmp_path / "m", num_shards=2)
    names = weight_names(folder)
    assert {"model.embed_tokens.weight", "lm_head.weight"} < names
    (folder / INDEX).write_text('{"weight_map": {"one": "a.safetensors"}}')
    assert weight_names(folder) == {"one"}
    (folder / INDEX).write_text("{")
    assert weight_names(folder) == frozenset()
    (folder / INDEX).unlink()
    assert weight_names(folder) == names


def test_facts_of_a_checkpoint(tiny_llama):
    checkpoint = open_checkpoint(tiny_llama)
    assert checkpoint.format == "safetensors"
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.model_type == "llama"
    assert checkpoint.max_model_len == 512
    assert checkpoint.eos_token_ids == (2,)


def test_several_end_tokens_come_from_the_generation_config(tmp_path):
    folder = make_folder(
        tmp_path / "m", {"eos_token_id": 2}, generation_config__json=json.dumps({"eos_token_id": [7, 8]})
    )
    assert open_checkpoint(folder).eos_token_ids == (7, 8)


def test_yarn_extends_the_context(tmp_path):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    folder = make_folder(tmp_path / "m", {"max_position_embeddings": 32, "rope_scaling": rope})
    assert open_checkpoint(folder).max_model_len == 128
    folder = make_folder(tmp_path / "n", {"max_position_embeddings": 32, "rope_scaling": rope | {"factor": 1.5}})
    assert open_checkpoint(folder).max_model_len == 48
    del rope["factor"]
    folder = make_folder(tmp_path / "o", {"max_position_embeddings": 32, "rope_scaling": rope})
    assert open_checkpoint(folder).max_model_len == 32


@pytest.mark.parametrize("name", ["max_position_embeddings", "max_sequence_length", "model_max_length", "n_positions"])
def test_the_longest_context_that_any_field_names_counts(tmp_path, name):
    fields = {"max_sequence_length": 0, "n_positions": 7, "model_max_length": 1e30} | {name: 64}
    assert open_checkpoint(make_folder(tmp_path / "m", fields)).max_model_len == 64


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "has no config.json, and no GGUF file either"),
        ("{", "not valid JSON"),
        ("[1]", "not an object"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
        ('{"torch_dtype": 5}', "dtype is 5"),
        ('{"rope_scaling": "yarn"}', "not an object"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin1"), "not valid JSON"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, config, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        open_checkpoint(make_folder(tmp_path / "m", config))
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no model at .*nowhere"):
        open_checkpoint(tmp_path / "nowhere")


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"folder with config.json, or a .gguf file"):
        open_checkpoint(tmp_path / "weights.bin")


def test_an_architecture_that_is_not_named_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="names no architecture"):
        _ = open_checkpoint(make_folder(tmp_path / "m", {"model_type": "llama"})).architecture


def test_a_context_length_that_is_not_named_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="lacks max_position_embeddings"):
        _ = open_checkpoint(make_folder(tmp_path / "m", {})).max_model_len


def test_opening_and_listing_import_no_torch(tiny_llama):
    code = (
        "import sys, atom_models; atom_models.open_checkpoint(sys.argv[1]);"
        "from atom_models.checkpoint.quantization_config import quantization_method;"
        "atom_models.supported_architectures(); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tiny_llama)], check=True)


def test_unknown_names_of_the_package_are_attribute_errors():
    import atom_models

    with pytest.raises(AttributeError, match="nonsense"):
        _ = atom_models.nonsense
