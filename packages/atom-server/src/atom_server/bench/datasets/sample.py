"""`Sample`: a prompt of a dataset; `DatasetOptions`: what was asked of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atom_server.bench.outcome import BenchError


@dataclass(frozen=True)
class Sample:
    """A prompt, how many tokens to ask for, and how many it has as far as is known (0 where not)."""

    prompt: str | list[int]
    output_len: int
    num_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Which dataset, and how much of it.

    Attributes:
        path: a file, or for "hf" a folder or the id of a dataset on Hugging Face.
        output_len: asked of every sample; None takes what the dataset says.
        input_len, output_len_random, range_ratio, prefix_len: the lengths of random prompts, each drawn from
            [range_ratio * length, length]; all prompts begin with the prefix, which comes on top.
        sonnet_input_len, sonnet_output_len, sonnet_prefix_len: the lengths of prompts of lines of a poem.
        hf_subset, hf_split: the part of a dataset on Hugging Face.
    """

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 1000
    seed: int = 0
    output_len: int | None = None
    input_len: int = 1024
    output_len_random: int = 128
    range_ratio: float = 1.0
    prefix_len: int = 0
    sonnet_input_len: int = 550
    sonnet_output_len: int = 150
    sonnet_prefix_len: int = 200
    hf_subset: str | None = None
    hf_split: str | None = None

    @property
    def file(self) -> Path:
        """The dataset's path.

        Raises:
            BenchError: none was given.
        """
        if self.path is None:
            raise BenchError(f"--dataset-name {self.name} needs --dataset-path")
        return self.path
