"""Tiny random CLIPs and SigLIPs, written by `transformers`, with tokenizers that end texts as published ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from embedding_folder import write_json
from tiny_encoders import SEP, write_word_tokenizer

TEXT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
PICTURE = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
# Patches of 8 in 36 pixels: those at the ends are cut short, as in SigLIP's largest.
FAMILIES: dict[str, dict[str, Any]] = {
    "clip": {
        "text": {"max_position_embeddings": 20, "eos_token_id": SEP},
        "picture": {"image_size": 32, "patch_size": 8},
        "processor": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        "fields": {"projection_dim": 24},
    },
    "siglip": {
        "text": {"max_position_embeddings": 12, "projection_size": 48, "pad_token_id": 0},
        "picture": {"image_size": 36, "patch_size": 8},
        "processor": {"size": {"height": 36, "width": 36}},
        "fields": {},
    },
}


def make_dual(family: str, folder: Path, **fields: Any) -> transformers.PreTrainedModel:
    """Writes a checkpoint with its tokenizer and processor, and gives the model of `transformers`.

    Args:
        family: one of `FAMILIES`.
        fields: what its config has beside what the family says.
    """
    own = FAMILIES[family]
    text, picture = TEXT | own["text"], PICTURE | own["picture"]
    config = transformers.AutoConfig.for_model(
        family, text_config=text, vision_config=picture, **own["fields"] | fields
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    write_word_tokenizer(folder, has_marks=True, has_types=False, doubles=False)
    pad = {"pad_token": "[PAD]"} if family == "siglip" else {}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **pad})
    processor_of(family).save_pretrained(folder)
    return model


def processor_of(family: str) -> Any:
    """The family's processor of pictures, by Pillow."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    kind = CLIPImageProcessorPil if family == "clip" else SiglipImageProcessorPil
    return kind(**FAMILIES[family]["processor"])


@torch.inference_mode()
def their_texts(model: Any, texts: list[list[int]]) -> torch.Tensor:
    """The features of texts, which SigLIP pads: float32 ``[texts, vector]``."""
    padding = model.config.text_config.max_position_embeddings if model.config.model_type == "siglip" else 0
    padded = [text + [0] * (padding - len(text)) for text in texts]
    return torch.cat([model.get_text_features(torch.tensor([text])).pooler_output for text in padded])


@torch.inference_mode()
def their_pictures(model: Any, pictures: list[np.ndarray]) -> torch.Tensor:
    """The features of pictures ``[height, width, 3]``, prepared by the family's own processor."""
    prepare = processor_of(model.config.model_type)
    made = [prepare(one, return_tensors="pt", input_data_format="channels_last") for one in pictures]
    return torch.cat([model.get_image_features(one["pixel_values"]).pooler_output for one in made])


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture of noise, uint8 ``[height, width, 3]``."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
