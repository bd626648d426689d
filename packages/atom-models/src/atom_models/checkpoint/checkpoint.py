"""`open_checkpoint`: what a model on disk says about itself, before any weight is read. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from atom_models.checkpoint.config_fields import normalize_config
from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_config import gguf_config
from atom_models.checkpoint.gguf_file import GGUFFile, read_gguf
from atom_models.checkpoint.quantization_files import quantization_beside
from atom_models.checkpoint.text_padding import TextPadding, padding_token
from atom_models.checkpoint.weight_names import is_decoder_alone, weight_names

# Models whose first token has the row behind that of padding in the table of positions.
_POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta")


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk.

    Attributes:
        path: folder with `config.json`, or the GGUF file.
        format: "safetensors" or "gguf".
        config: Hugging Face field names; both generations of transformers brought to one (`rope_parameters`, `dtype`).
            A `quantization_config` may have a file of its own.
        generation_config: `generation_config.json`, or what a GGUF header says; may be empty.
        gguf: the header of a GGUF file, with the tokenizer in its metadata.
        preprocessor_config: `preprocessor_config.json`, or that part of `processor_config.json`: how pictures are
            prepared; may be empty.
        video_preprocessor_config: `video_preprocessor_config.json`, or its part of `processor_config.json`: the same of
            videos; may be empty.
    """

    path: Path
    format: Literal["safetensors", "gguf"]
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    gguf: GGUFFile | None = None
    preprocessor_config: Mapping[str, Any] = field(default_factory=dict)
    video_preprocessor_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of `config`: nested in multimodal checkpoints, else all of it."""
        return self.config.get("text_config", self.config)

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The class that wrote the checkpoint, such as ``"LlamaForCausalLM"``."""
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise CheckpointError(f"{self.path}: config.json names no architecture (model_type {self.model_type!r})")
        return names[0]

    @property
    def dtype(self) -> str:
        """Torch name of the dtype that the weights were meant to run in."""
        return self.config.get("dtype") or self.text_config.get("dtype") or "float32"

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens that the model was made for."""
        config = self.text_config
        lengths = [
            config.get(key)
            for key in ("max_position_embeddings", "max_sequence_length", "model_max_length", "n_positions")
        ]
        rope = config.get("rope_parameters") or {}
        if rope.get("rope_type") == "yarn" and rope.get("original_max_position_embeddings"):
            lengths.append(int(rope["original_max_position_embeddings"] * rope.get("factor", 1.0)))
        known = [length for length in lengths if isinstance(length, int) and length > 0]
        if not known:
            raise CheckpointError(f"{self.path}: config.json lacks max_position_embeddings")
        if self.model_type in _POSITIONS_BEHIND_PADDING:
            # The table's first rows, up to that of padding, are no token's.
            return max(known) - int(config.get("pad_token_id") or 0) - 1
        return max(known)

    @cached_property
    def has_head(self) -> bool:
        """Whether hidden states become logits of tokens."""
        return self.why_no_text is None

    @cached_property
    def why_no_text(self) -> str | None:
        """Why the model writes no text, as the end of a sentence; None if it does."""
        from atom_models.architectures.registry import has_labels, is_encoder

        if is_encoder(self.architecture):
            return f"{self.architecture} is an encoder"
        if has_labels(self.architecture):
            return f"{self.architecture} ends in scores of labels"
        if self.format == "gguf" or self.text_config.get("tie_word_embeddings"):
            return None
        # A decoder that was saved without a head, and shares no table.
        names = weight_names(self.path)
        has_head = "lm_head.weight" in names or not is_decoder_alone(names)
        return None if has_head else "its checkpoint holds a decoder without a head"

    @property
    def text_padding(self) -> TextPadding | None:
        """How texts are filled up before the model reads them; None where they are not."""
        from atom_models.architectures.registry import pads_texts

        if not pads_texts(self.architecture):
            return None
        token_id = padding_token(self.path)
        if token_id is None:
            token_id = int(self.text_config.get("pad_token_id") or 0)
        return TextPadding(self.max_model_len, token_id)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text; the generation config's, else the model config's."""
        for source in (self.generation_config, self.config, self.text_config):
            ids = source.get("eos_token_id")
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (ids,)
        return ()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the configuration of a model folder or a `.gguf` file; weights stay on disk.

    A folder without `config.json` that holds a single GGUF file stands for that file.

    Raises:
        CheckpointError: one line that names the file and what is wrong with it.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path} is no model: give a folder with config.json, or a .gguf file")
        return _open_gguf(path)
    if not path.is_dir():
        raise CheckpointError(f"there is no model at {path}")
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return _open_gguf(files[0])
        found = f"{len(files)} GGUF files (name one of them)" if files else "no GGUF file either"
        raise CheckpointError(f"{path} has no config.json, and {found}")
    config = normalize_config(_read_json(path / "config.json"))
    if config.get("quantization_config") is None and (beside := quantization_beside(path, _read_json)) is not None:
        config["quantization_config"] = beside
    generation = _read_if_there(path / "generation_config.json")
    pictures = _preprocessor_config(path, "preprocessor_config.json", "image_processor")
    videos = _preprocessor_config(path, "video_preprocessor_config.json", "video_processor")
    return Checkpoint(
        path, "safetensors", config, generation, preprocessor_config=pictures, video_preprocessor_config=videos
    )


def _preprocessor_config(folder: Path, name: str, part: str) -> dict[str, Any]:
    """How pictures or videos are prepared; recent releases of transformers save it beside other modalities' parts."""
    own, shared = folder / name, folder / "processor_config.json"
    found = _read_json(own) if own.is_file() else _read_if_there(shared).get(part, {})
    if not isinstance(found, dict):
        raise CheckpointError(f"{shared}: {part} is {found!r}, not an object")
    return found


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    config, generation = gguf_config(file)
    return Checkpoint(path, "gguf", config, generation, file)


def _read_if_there(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object")
    return value
