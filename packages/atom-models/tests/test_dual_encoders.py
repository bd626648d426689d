"""CLIP and SigLIP without an engine: their features, what their publishers' configs leave out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom_models import (
    BuildContext,
    CheckpointError,
    LoadedModel,
    build_model,
    load_model,
    model_requirements,
    open_checkpoint,
)
from atom_models.checkpoint.text_padding import TextPadding
from atom_models.weights.filling import check_fit
from embedding_folder import write_json
from tiny_dual import FAMILIES, make_dual, their_pictures, their_texts
from tiny_encoders import CLS, SEP, rewrite_config
from tiny_pictures import picture

# Nothing but what differs from transformers' own, as the publishers wrote them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "clip-vit-large-patch14-336": {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": 768,
        "text_config": {
            "model_type": "clip_text_model",
            # The text model's own, which is not that of both.
            "projection_dim": 512,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "eos_token_id": 2,
            # Old releases wrote settings of generation everywhere.
            "length_penalty": 1.0,
            "max_length": 20,
            "num_beams": 1,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "image_size": 336,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
    },
    "siglip-base-patch16-224": {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        "text_config": {"model_type": "siglip_text_model"},
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "siglip-so400m-patch14-384": {
        "architectures": ["SiglipModel"],
        "model_type": "siglip",
        "text_config": {
            "model_type": "siglip_text_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "image_size": 384,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
        },
    },
}


@pytest.fixture(params=FAMILIES)
def dual(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any, LoadedModel]:
    reference = make_dual(request.param, tmp_path)
    return tmp_path, reference, load_model(tmp_path, "float32", progress=False)


def test_features_are_those_of_transformers(dual):
    _, reference, loaded = dual
    spec = loaded.model.vision_spec
    # SigLIP's length, so that its texts need no padding.
    texts = [[CLS, *range(5, 15), SEP], [CLS, *range(25, 35), SEP]]
    features = torch.stack([rows[-1] for rows in loaded.hidden_states(texts)])
    torch.testing.assert_close(features, their_texts(reference, texts), atol=1e-5, rtol=1e-5)
    shown = [picture(*spec.fitted(32, 32), seed) for seed in range(3)]
    found = loaded.hidden_states([[0]] * 3, [[one] for one in shown])
    whole = shown
    if (more := spec.max_side - shown[0].shape[0]) > 0:
        # What a patch that is cut short would see is left out.
        whole = [torch.nn.functional.pad(one, (0, 0, 0, more, 0, more), value=255) for one in shown]
    expected = their_pictures(reference, [one.numpy() for one in whole])
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_those_models(name: str, tmp_path: Path):
    write_json(tmp_path / "config.json", PUBLISHED[name])
    needs, checkpoint = model_requirements(open_checkpoint(tmp_path)), open_checkpoint(tmp_path)
    assert needs.warnings == ()
    assert needs.max_model_len == (64 if "siglip" in name else 77)
    config = transformers.AutoConfig.for_model(**PUBLISHED[name])
    with torch.device("meta"):
        stored = dict(transformers.AutoModel.from_config(config).state_dict())
    model = build_model(checkpoint, BuildContext(dtype=torch.bfloat16, device="meta"))
    names = {one for one in stored if model.own_name(one) is not None}
    assert set(check_fit(model, names, name)) == names
    assert needs.num_parameters == sum(stored[one].numel() for one in names)


def test_texts_are_padded_with_the_token_of_the_tokenizer(tmp_path: Path):
    make_dual("siglip", tmp_path)
    rewrite_config(tmp_path, text_config={**FAMILIES["siglip"]["text"], "pad_token_id": 7})
    assert open_checkpoint(tmp_path).text_padding == TextPadding(12, 0)
    (tmp_path / "tokenizer_config.json").unlink()
    assert open_checkpoint(tmp_path).text_padding == TextPadding(12, 7)
    assert TextPadding(4, 9).padded([1, 2]) == [1, 2, 9, 9]
    make_dual("clip", tmp_path)
    assert open_checkpoint(tmp_path).text_padding is None


@pytest.mark.parametrize(
    ("family", "processor", "says"),
    [
        ("clip", {"crop_size": 16}, "crop_size is 16, and config.json says 32"),
        ("clip", {"size": {"shortest_edge": 48}}, "size is 48, and config.json says 32"),
        ("clip", {"do_center_crop": False}, "do_center_crop is false, and size is"),
        ("clip", {"do_normalize": False}, "do_normalize is False"),
        ("siglip", {"size": {"height": 36, "width": 40}}, "both directions must have one"),
        ("siglip", {"size": {"height": 32, "width": 32}}, "size is 32, and config.json says 36"),
    ],
)
def test_the_processor_of_another_model_is_refused(family: str, processor: dict[str, Any], says: str, tmp_path: Path):
    make_dual(family, tmp_path)
    path = tmp_path / "preprocessor_config.json"
    write_json(path, json.loads(path.read_text()) | processor)
    with pytest.raises(CheckpointError, match=says):
        load_model(tmp_path, progress=False)


def test_vectors_that_could_not_be_compared_are_refused(tmp_path: Path):
    make_dual("siglip", tmp_path)
    rewrite_config(
        tmp_path,
        text_config={**json.loads((tmp_path / "config.json").read_text())["text_config"], "projection_size": 32},
    )
    with pytest.raises(CheckpointError, match="pictures have 48 elements, and those of texts 32"):
        load_model(tmp_path, progress=False)
