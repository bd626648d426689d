"""Tiny random encoders, written by `transformers`; their tokenizers lay out pairs as published ones do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from embedding_folder import write_json

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
# Positions beyond 40 test windows, and their end is soon reached; those of RoBERTa have two rows that are no token's.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"max_position_embeddings": 64, "type_vocab_size": 2, "pad_token_id": 0},
    "roberta": {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1},
    "jina_embeddings_v3": {"max_position_embeddings": 64, "type_vocab_size": 1, "pad_token_id": 1},
    "modernbert": {
        "num_hidden_layers": 4,
        "max_position_embeddings": 64,
        "local_attention": 12,
        "norm_bias": True,
        "classifier_bias": True,
        "pad_token_id": 0,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2),
    },
}
WORDS = [
    *"abcdefghijklmnopqrstuvwxyz",
    "sea",
    "stone",
    "hours",
    "of",
    "the",
    "where",
    "is",
    "river",
    "query",
    "yes",
    "no",
]
CLS, SEP = 2, 3
# A reranker that is asked in words, or ends in one label.
_QWEN3 = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}


def make_encoder(
    family: str, folder: Path, *, labels: int | None = None, seed: int = 0, **fields: Any
) -> transformers.PreTrainedModel:
    """Writes a checkpoint with its tokenizer, and gives the model of `transformers`.

    Args:
        family: one of `FAMILIES`, or "qwen3".
        labels: how many labels its head has; None saves the encoder alone.
        fields: what its config has beside what the family says.
    """
    if labels is not None:
        names = {str(index): f"label-{index}" for index in range(labels)}
        fields |= {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
    sizes = SIZES | {"num_attention_heads": 4} | (_QWEN3 if family == "qwen3" else FAMILIES[family]) | fields
    config = transformers.AutoConfig.for_model(family, **sizes)
    auto = transformers.AutoModelForCausalLM if family == "qwen3" else transformers.AutoModel
    if labels is not None:
        auto = transformers.AutoModelForSequenceClassification
    torch.manual_seed(seed)
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    doubles = family in ("roberta", "xlm-roberta", "jina_embeddings_v3")
    write_word_tokenizer(folder, has_marks=family != "qwen3", has_types=family == "bert", doubles=doubles)
    return model


def write_word_tokenizer(folder: Path, *, has_marks: bool, has_types: bool, doubles: bool) -> None:
    """A tokenizer of `WORDS`.

    Args:
        has_marks: it puts marks around a text, and between two: "[CLS] a [SEP] b [SEP]".
        has_types: the second text is of type 1, as BERT has it.
        doubles: there are two marks between texts, as RoBERTa has it.
    """
    vocab = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    if has_marks:
        tokenizer.post_processor = _marks(has_types=has_types, doubles=doubles)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _marks(*, has_types: bool, doubles: bool) -> processors.TemplateProcessing:
    between, second = " [SEP]" * doubles, int(has_types)
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP]{between} $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )


def write_modules(folder: Path, pooling: str, *, normalizes: bool) -> None:
    """The files by which `sentence-transformers` knows how vectors are made."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if normalizes else {})
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})


def rewrite_config(folder: Path, **fields: Any) -> None:
    """Sets fields of `config.json`; those that are None go."""
    config = json.loads((folder / "config.json").read_text()) | fields
    write_json(folder / "config.json", {name: value for name, value in config.items() if value is not None})
