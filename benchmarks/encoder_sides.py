"""Engines that make vectors of texts, each in a process of its own; this module is also what runs in that process.

All do the same work: from a list of texts to lists of numbers on the host. Each tokenizes by the `tokenizers` library
in batches, on as many threads as that library takes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import sides
from benchmarks.encoder_folders import random_texts

# Texts that the peer pads to one length and computes at once: the default of sentence-transformers.
PEER_BATCH = 32


class Embedder:
    """A side whose steps make vectors of one list of texts, from the texts on."""

    def __init__(self, path: Path, embed: Callable[[list[str]], list[list[float]]], close: Callable[[], None]) -> None:
        self._path, self._embed, self.close = path, embed, close

    def embedder(self, count: int, shortest: int, longest: int) -> Callable[[], object]:
        """Each call computes the vectors of `count` texts of so many tokens."""
        texts = random_texts(self._path, count, shortest=shortest, longest=longest)
        return lambda: self._embed(texts)

    def vectors(self, count: int, shortest: int, longest: int) -> list[list[float]]:
        """Those of such texts, to show that all sides compute the same."""
        return self._embed(random_texts(self._path, count, shortest=shortest, longest=longest))


def peer_name() -> str:
    """The engine that ours is compared with: `transformers` does the same work where the other is not installed."""
    return "sentence-transformers" if importlib.util.find_spec("sentence_transformers") else "transformers"


def open_side(name: str, *, path: str, dtype: str, threads: int, device: str) -> Embedder:
    """Load `path` in the engine `name`, in this process.

    Args:
        device: "cpu" or "cuda"; ours takes the GPU of its own accord where there is one.
    """
    folder = Path(path)
    if name == "atom":
        return _ours(folder, dtype, threads)
    import torch

    torch.set_num_threads(threads)
    torch.zeros(30 << 20, dtype=torch.uint8)  # see `benchmarks.peers.Transformers`: memory is kept between steps then
    if name == "transformers":
        return Embedder(folder, _transformers(folder, dtype, device), lambda: None)
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    model = SentenceTransformer(path, device=device, model_kwargs={"dtype": getattr(torch, dtype)})
    return Embedder(folder, lambda texts: model.encode(texts, batch_size=PEER_BATCH).tolist(), lambda: None)


def _ours(folder: Path, dtype: str, threads: int) -> Embedder:
    from atom_core import LLMEngine

    engine = LLMEngine(str(folder), dtype=dtype, num_threads=threads)
    return Embedder(folder, engine.embed, engine.close)


def _transformers(folder: Path, dtype: str, device: str) -> Callable[[list[str]], list[list[float]]]:
    """What sentence-transformers does: sort texts by length, pad batches, make the first token's state of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(texts: Sequence[str]) -> list[list[float]]:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        rows: list[Any] = [None] * len(texts)
        with torch.inference_mode():
            for start in range(0, len(order), PEER_BATCH):
                chosen = order[start : start + PEER_BATCH]
                inputs = tokenizer([texts[index] for index in chosen], padding=True, return_tensors="pt").to(device)
                first_BD = model(**inputs).last_hidden_state[:, 0]
                for index, row in zip(chosen, torch.nn.functional.normalize(first_BD, dim=-1), strict=True):
                    rows[index] = row
            return torch.stack(rows).tolist()

    return embed


def main() -> None:
    """Serve one engine over standard input and output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=("atom", "transformers", "sentence-transformers"))
    parser.add_argument("settings", type=json.loads)
    options = parser.parse_args()
    sides.serve(lambda: open_side(options.name, **options.settings))


if __name__ == "__main__":
    main()
