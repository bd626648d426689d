"""Random encoders of published shapes, with a tokenizer, and texts for them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase


@dataclass(frozen=True)
class Shape:
    """What decides how long an encoder of this shape takes; its weights are random.

    Attributes:
        family: the `model_type` of its config.
        marks: the tokens that are no words, by their ids from 0 on.
        positions: rows of the table of positions.
    """

    family: str
    marks: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    positions: int
    num_layers: int = 12


_XLM_R = ("[CLS]", "[PAD]", "[SEP]", "[UNK]")
SHAPES = {
    "bge-small": Shape("bert", ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), 30_522, 384, 12, 1536, 512),
    "xlm-r-base": Shape("xlm-roberta", _XLM_R, 250_002, 768, 12, 3072, 514),
    "bge-m3": Shape("xlm-roberta", _XLM_R, 250_002, 1024, 16, 4096, 8194, num_layers=24),
}


def write_encoder(shape: Shape, folder: Path, *, num_layers: int | None = None) -> None:
    """Write a checkpoint whose vectors are those of the first token, of length 1, as the bge models have them.

    Args:
        num_layers: as many layers as this, not those of the shape.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=num_layers or shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.positions,
        type_vocab_size=2 if shape.family == "bert" else 1,
        pad_token_id=shape.marks.index("[PAD]"),
    )
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    write_tokenizer(shape, folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    pooling = {"word_embedding_dimension": shape.hidden_size, "pooling_mode_cls_token": True}
    pooling["pooling_mode_mean_tokens"] = False
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def random_texts(folder: Path, count: int, *, shortest: int, longest: int) -> list[str]:
    """Texts of whole words of a folder's tokenizer: with the marks around them as many tokens as the bounds allow."""
    from tokenizers import Tokenizer

    words = [word for word in Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() if word.isalpha()]
    words.sort()
    source = random.Random(1)
    lengths = text_lengths(count, shortest=shortest, longest=longest)
    return [" ".join(source.choices(words, k=length - 2)) for length in lengths]


def text_lengths(count: int, *, shortest: int, longest: int) -> list[int]:
    """Tokens of each of these texts, with the two marks around it."""
    source = random.Random(0)
    return [source.randint(shortest, longest) for _ in range(count)]


def write_tokenizer(shape: Shape, folder: Path) -> None:
    """A WordPiece tokenizer that has each of its words in one piece."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = itertools.islice(_words(), shape.vocab_size - len(shape.marks))
    vocab = {word: index for index, word in enumerate([*shape.marks, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(shape.marks))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if shape.family == "bert" else "[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[(mark, vocab[mark]) for mark in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.positions - 2, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _words() -> Iterator[str]:
    """All words of one letter, of two, and so on."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(ascii_lowercase, repeat=length))
