"""Loading: exact accounting, one-line errors, nothing held twice."""

from __future__ import annotations

import gc
import io
import json
import logging
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from atom_models import (
    BuildContext,
    CheckpointError,
    UnsupportedArchitectureError,
    build_model,
    load_dummy_weights,
    load_model,
    load_named_weights,
    load_weights,
    open_checkpoint,
)
from atom_models.layers.weights import Weights
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.quantization import ExpectedWeight
from atom_models.weights import filling
from atom_models.weights.safetensors_source import open_safetensors
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama, write_weights


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def edit_weights(folder, *, drop=(), **add):
    weights = {n: w for n, w in load_file(folder / "model.safetensors").items() if n not in drop}
    write_weights(folder, weights | {name.replace("__", "."): array for name, array in add.items()})
    return folder


def test_a_missing_weight_is_named(tmp_path):
    folder = edit_weights(make_tiny_llama(tmp_path / "m"), drop=("model.layers.1.mlp.up_proj.weight",))
    with pytest.raises(CheckpointError, match=r"1 missing weight: model\.layers\.1\.mlp\.up_proj\.weight$"):
        load_model(folder)


def test_each_layer_is_finished_once_when_its_last_weight_has_come_and_one_without_weights_at_the_end():
    order = []

    class Noting(torch.nn.Module):
        def __init__(self, name, *names):
            super().__init__()
            self.name, self.names = name, names

        def ignored_weights(self):
            return frozenset()

        def weights(self):
            return [Weights(lambda: {name: ExpectedWeight((1,), torch.float32) for name in self.names}, ())]

        def load_shard(self, name, tensor):
            order.append(name)

        def finish(self):
            order.append(f"finish {self.name}")

    model = torch.nn.ModuleList([Noting("none"), Noting("two", "a", "c"), Noting("one", "b")])
    load_named_weights(model, [(name, torch.zeros(1)) for name in "abc"], where="here")
    assert order == ["a", "b", "finish one", "c", "finish two", "finish none"]


def test_an_unexpected_weight_is_named(tmp_path):
    folder = edit_weights(make_tiny_llama(tmp_path / "m"), extra__weight=np.zeros(3, np.float32))
    with pytest.raises(CheckpointError, match=r"1 unexpected weight: extra\.weight$"):
        load_model(folder)


def test_many_missing_weights_are_counted_and_the_first_named(tmp_path):
    folder = edit_config(make_tiny_llama(tmp_path / "m"), num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"9 missing weights: model\.layers\.2\..* and 1 more") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_biases_that_the_config_denies_are_unexpected(tmp_path):
    folder = edit_config(make_tiny_llama(tmp_path / "m", attention_bias=True), attention_bias=False)
    with pytest.raises(CheckpointError, match="8 unexpected weights: .*q_proj.bias"):
        load_model(folder)


def test_a_weight_of_another_shape_is_named(tmp_path):
    folder = edit_weights(make_tiny_llama(tmp_path / "m"), model__norm__weight=np.zeros(65, np.float32))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is \[65\], but the config calls for \[64\]"):
        load_model(folder)


def test_a_weight_of_another_kind_of_number_is_named(tmp_path):
    name = "model.layers.0.mlp.down_proj.weight"
    folder = edit_weights(make_tiny_llama(tmp_path / "m"), **{name.replace(".", "__"): np.zeros((64, 128), np.int8)})
    with pytest.raises(CheckpointError, match=r"down_proj\.weight is torch\.int8"):
        load_model(folder)


def test_tables_of_old_checkpoints_and_a_stored_tied_head_are_no_surprise(tmp_path):
    plain = make_tiny_llama(tmp_path / "plain", tie=True)
    folder = make_tiny_llama(tmp_path / "m", tie=True)
    edit_weights(
        folder,
        lm_head__weight=np.zeros((512, 64), np.float32),
        model__layers__0__self_attn__rotary_emb__inv_freq=np.zeros(8, np.float32),
    )
    assert torch.equal(load_model(folder).logits([[1, 2]])[0], load_model(plain).logits([[1, 2]])[0])


def test_a_sharded_checkpoint_equals_a_single_file(tmp_path, tiny_llama):
    folder = make_tiny_llama(tmp_path / "m", num_shards=3)
    assert torch.equal(load_model(folder).logits([[1, 2]])[0], load_model(tiny_llama).logits([[1, 2]])[0])


def shard(folder, number=2):
    return folder / f"model-{number:05d}-of-00003.safetensors"


def set_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


DAMAGE = {
    "missing file": (lambda f: shard(f).unlink(), "lacks model-00002-of-00003.safetensors"),
    "empty file": (lambda f: shard(f).write_bytes(b""), "not a usable safetensors file"),
    "cut header": (lambda f: shard(f).write_bytes(shard(f).read_bytes()[:100]), "damaged or incomplete"),
    "cut data": (lambda f: shard(f).write_bytes(shard(f).read_bytes()[:-100]), "damaged or incomplete"),
    "other bytes": (lambda f: shard(f).write_bytes(b"\xff" * 400), "not a usable safetensors file"),
    "index no JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), "not a usable index"),
    "index without map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "not a usable index"),
    "index leads outside": (
        lambda f: set_index(f, lambda m: m.update({"model.norm.weight": "../x.safetensors"})),
        "points outside its folder",
    ),
    "index is wrong": (
        lambda f: set_index(
            f, lambda m: m.update({"model.norm.weight": shard(f, 1).name, "lm_head.weight": shard(f, 1).name})
        ),
        "lacks .*, which the index says is in it",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path, damage):
    folder = make_tiny_llama(tmp_path / "m", num_shards=3)
    do, says = DAMAGE[damage]
    do(folder)
    with pytest.raises(CheckpointError, match=says) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_a_weight_that_two_shards_hold_is_an_error(tmp_path):
    folder = make_tiny_llama(tmp_path / "m", num_shards=3)
    shard(folder, 1).write_bytes(shard(folder, 2).read_bytes())
    set_index(folder, lambda m: [m.pop(name) for name in [n for n in m if m[n] == shard(folder, 1).name]])
    set_index(folder, lambda m: m.update({"extra": shard(folder, 1).name}))
    with pytest.raises(CheckpointError, match="lacks extra"):
        load_model(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"3 safetensors files but no model\.safetensors\.index\.json"):
        load_model(folder)


def test_pickled_weights_are_refused_and_never_opened(tmp_path):
    folder = make_tiny_llama(tmp_path / "m")
    (folder / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("exploded").touch, ())

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\).* convert them"):
        load_model(folder)
    assert not (tmp_path / "exploded").exists()


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = make_tiny_llama(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        load_model(folder)


def test_an_unsupported_architecture_names_those_that_are_and_the_nearest(tmp_path):
    folder = edit_config(make_tiny_llama(tmp_path / "m"), architectures=["Llama5ForCausalLM"])
    with pytest.raises(
        UnsupportedArchitectureError, match=r"Llama5ForCausalLM is not supported; supported: .*nearest is Llama"
    ):
        load_model(folder)
    edit_config(folder, architectures=["T5Model"])
    with pytest.raises(
        UnsupportedArchitectureError, match=r"^(?!.*nearest).*T5Model is not supported; supported: .*Llama\w+, "
    ):
        load_model(folder)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden_size": None}, "config.json lacks hidden_size, which LlamaConfig needs"),
        ({"hidden_size": "64"}, "hidden_size is '64', not an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny', not a number"),
        ({"attention_bias": 1}, "attention_bias is 1, not true or false"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide num_attention_heads, 4"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; it must be finite and above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be finite and above 0"),
        ({"hidden_act": "relu6"}, "hidden_act is 'relu6'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral' is not one of"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "needs the parameter original_max_position"),
        ({"vocab_size": 600}, r"\[512, 64\], but the config calls for \[600, 64\]"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_field(tmp_path, fields, says):
    with pytest.raises(ValueError, match=says) as caught:
        load_model(edit_config(make_tiny_llama(tmp_path / "m"), **fields))
    assert "\n" not in str(caught.value)


def test_a_null_where_a_number_has_to_be_is_no_default(tmp_path):
    folder = make_tiny_llama(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": None}))
    with pytest.raises(CheckpointError, match="rms_norm_eps is null; it must be a number above 0"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["int8", "nonsense", "Tensor"])
def test_a_dtype_that_is_none_is_refused(tiny_llama, dtype):
    with pytest.raises(ValueError, match="is not one of float32, bfloat16, float16"):
        load_model(tiny_llama, dtype=dtype)


def test_a_model_holds_no_weights_before_it_is_loaded(tiny_llama):
    model = build_model(open_checkpoint(tiny_llama), BuildContext(dtype=torch.float32))
    assert live_bytes(model) == 0


def live_bytes(model):
    return sum(
        tensor.numel() * tensor.element_size()
        for module in model.modules()
        for part in getattr(module, "_parts", [])
        for tensor in part.matrices._tensors.values()
    )


def test_no_source_tensor_outlives_the_packing_of_its_layer(tmp_path):
    """With packed layouts the loaded tensors must be gone; at most one merged layer is in flight."""
    folder = make_tiny_llama(tmp_path / "m")
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    stacked, most = [], 0
    layer = model.model.layers[0].mlp.gate_up_proj
    original = layer.load_shard

    def load_shard(name, tensor):
        nonlocal most
        original(name, tensor)
        stacked.append(weakref.ref(tensor))
        most = max(most, live_bytes(model))

    layer.load_shard = load_shard
    load_weights(model, checkpoint)
    gc.collect()
    assert [reference() for reference in stacked] == [None, None]
    assert most > 0
    assert live_bytes(model) == 0


def test_int8_weights_replace_their_sources_in_memory(tiny_llama):
    loaded = load_model(tiny_llama, dtype="float32", quantization="int8")
    layer = loaded.model.model.layers[0].mlp.down_proj
    assert layer._apply.weight_bytes == 64 * 128 + 64 * 4


def test_dummy_weights_fill_every_layer_the_same_way_each_time(tiny_llama, tmp_path):
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    checkpoint = open_checkpoint(tmp_path)
    results = []
    for seed in (0, 0, 1):
        model = build_model(checkpoint, BuildContext(dtype=torch.float32))
        load_dummy_weights(model, checkpoint, seed=seed)
        hidden = PagedRun(model, 1).step([SequenceStep([1, 2, 3], 0, [0])])[0]
        results.append(model.compute_logits(hidden))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.isfinite(results[0]).all()
    assert results[0].std() > 0


def test_dummy_norms_scale_nothing(tiny_llama):
    checkpoint = open_checkpoint(tiny_llama)
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    load_dummy_weights(model, checkpoint)
    ones = torch.ones(2, 64)
    torch.testing.assert_close(model.model.norm(ones), ones)


def test_dummy_weights_fit_an_int8_checkpoint_too(tiny_llama, tmp_path):
    config = json.loads((tiny_llama / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = build_model(open_checkpoint(tmp_path), BuildContext(dtype=torch.float32))
    load_dummy_weights(model)
    assert PagedRun(model, 1).step([SequenceStep([1, 2, 3], 0, [0])])[0].shape == (3, 64)


def test_what_was_loaded_is_told_in_a_line_and_no_bar_where_no_terminal_is(tiny_llama, caplog, capfd):
    with caplog.at_level(logging.INFO, logger="atom_models"):
        load_model(tiny_llama)
    assert [record.getMessage()[:17] for record in caplog.records] == ["loaded 21 tensors"]
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_drawn_on_a_terminal_unless_it_is_unwanted(tiny_llama, monkeypatch, progress, quantization):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    load_model(tiny_llama, quantization=quantization, progress=progress)
    assert ("Loading weights" in terminal.getvalue()) == progress


def test_a_host_may_hand_over_the_weights_itself(tiny_llama):
    checkpoint, context = open_checkpoint(tiny_llama), BuildContext()
    whole, handed = build_model(checkpoint, context), build_model(checkpoint, context)
    load_weights(whole, checkpoint)
    tensors = {name: torch.from_numpy(array) for name, array in load_file(tiny_llama / "model.safetensors").items()}
    assert load_named_weights(handed, iter(tensors.items()), "the host") == set(tensors)
    x = torch.ones(1, 64)
    assert torch.equal(handed.model.layers[1].mlp.gate_up_proj(x), whole.model.layers[1].mlp.gate_up_proj(x))
    tensors.pop("model.norm.weight")
    with pytest.raises(
        CheckpointError, match=r"the host does not fit the model: 1 missing weight: model\.norm\.weight"
    ):
        load_named_weights(build_model(checkpoint, context), tensors.items(), "the host")


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "qwen3_moe"])
def test_what_a_host_hands_over_is_not_gathered(family, tmp_path):
    """Whichever of its names a mixture's tensors have: that shows while they come."""
    checkpoint = open_checkpoint(make_tiny(family, tmp_path / "m"))
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    given, most = [], 0

    def tensors():
        nonlocal most
        for name, array in sorted(load_file(checkpoint.path / "model.safetensors").items()):
            tensor = torch.from_numpy(array).clone()
            given.append(weakref.ref(tensor))
            yield name, tensor
            del tensor
            most = max(most, sum(reference() is not None for reference in given))

    load_named_weights(model, tensors(), "the host")
    # In order of names a fused matrix is the third of its layer's that says so.
    assert most <= 3
    again = build_model(checkpoint, BuildContext(dtype=torch.float32))
    load_weights(again, checkpoint)
    hidden, expected = (PagedRun(one, 1).step([SequenceStep([1, 2, 3], 0, [0])])[0] for one in (model, again))
    assert torch.equal(hidden, expected)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_weight_that_a_host_lacks_or_has_too_many_is_named_in_the_spelling_of_the_others(family, tmp_path):
    checkpoint = open_checkpoint(make_tiny(family, tmp_path / "m"))
    weights = {name: torch.from_numpy(one) for name, one in load_file(checkpoint.path / "model.safetensors").items()}
    lacking = next(name for name in sorted(weights) if ".1." in name and "experts" in name)
    del weights[lacking]
    weights["model.layers.1.mlp.experts.9.of_mine"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        load_named_weights(build_model(checkpoint, BuildContext()), weights.items(), "the host")
    assert str(caught.value).endswith(
        f"1 missing weight: {lacking}; 1 unexpected weight: model.layers.1.mlp.experts.9.of_mine"
    )


def test_a_checkpoint_that_does_not_fit_is_refused_before_a_tensor_is_read(tmp_path):
    folder = make_tiny_llama(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    write_weights(folder, weights | {"model.layers.0.mlp.gate.weight": np.zeros(1, np.float32)})
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint, BuildContext())
    with pytest.raises(CheckpointError, match="1 missing weight: model.layers.0.mlp.up_proj.weight; 1 unexpected wei"):
        load_weights(model, checkpoint)
    with pytest.raises(RuntimeError, match="has no weights yet"):
        model.model.embed_tokens(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("numbers", "are_finite"),
    [([1.0, -2.0], True), ([], True), ([1.0, math.inf], False), ([-math.inf, 1.0], False), ([1.0, math.nan], False)],
)
def test_one_number_that_is_not_finite_is_enough(numbers, are_finite):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert filling._is_finite(torch.tensor(numbers, dtype=dtype)) is are_finite
    assert filling._is_finite(torch.tensor([1, 2]))


def test_a_file_of_any_name_is_read_if_it_is_the_only_one_and_numbers_of_every_kind(tmp_path):
    names = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu"
    names += " int64 int32 int16 int8 uint8 bool"
    kinds = {name: getattr(torch, name) for name in names.split()}
    save_file({name: torch.ones(2, 3).to(kind) for name, kind in kinds.items()}, tmp_path / "weights.safetensors")
    source = open_safetensors(tmp_path)
    headers = source.headers().tensors
    assert {name: (header.shape, header.dtype) for name, header in headers.items()} == {
        name: ((2, 3), kind) for name, kind in kinds.items()
    }
    read = dict(source.read(kinds))
    assert {name: tensor.dtype for name, tensor in read.items()} == kinds
    save_file({"other": torch.ones(1)}, tmp_path / "more.safetensors")
    with pytest.raises(CheckpointError, match="has 2 safetensors files but no model.safetensors.index.json"):
        open_safetensors(tmp_path)
