"""Headers and indices of safetensors that somebody damaged, or made up: they are read, or refused in a line."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from atom_models import CheckpointError
from atom_models.checkpoint.weight_names import INDEX, weight_names
from atom_models.weights.safetensors_source import open_safetensors

GOOD = save({"first.weight": torch.arange(12.0).reshape(3, 4), "second.weight": torch.ones(5, dtype=torch.bfloat16)})
DTYPES = ["F64", "F32", "BF16", "F16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "U64", "C64", "none", ""]
NUMBERS = st.one_of(st.sampled_from([0, 1, 3, 12, 58, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64]), st.integers(0, 70))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
TENSOR = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {
            "dtype": st.one_of(st.sampled_from(DTYPES), JSON),
            "shape": st.one_of(st.lists(NUMBERS, max_size=4), JSON),
            "data_offsets": st.one_of(st.lists(NUMBERS, min_size=2, max_size=2), JSON),
        }
    ),
)
HEADER = st.dictionaries(st.sampled_from(["a", "b", "embed_tokens.weight", "__metadata__", ""]), TENSOR, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


def is_read_or_refused(folder) -> bool:
    """Whether the folder is read: every tensor has what its header says. What is refused is so in one line."""
    weight_names(folder)  # looks at the same files, and reports nothing
    try:
        source = open_safetensors(folder)
        headers = source.headers()
        for name, tensor in source.read(sorted(source.names())):
            assert (tuple(tensor.shape), tensor.dtype) == (headers.tensors[name].shape, headers.tensors[name].dtype)
            tensor.clone()  # touches every byte
    except CheckpointError as error:
        refusal = str(error)
    else:
        return True
    assert "\n" not in refusal
    return False


def write(folder, content: bytes) -> None:
    (folder / INDEX).unlink(missing_ok=True)
    (folder / "model.safetensors").write_bytes(content)


def test_what_is_whole_is_read_and_what_is_cut_anywhere_is_refused(folder):
    write(folder, GOOD)
    assert is_read_or_refused(folder)
    for length in range(len(GOOD)):
        write(folder, GOOD[:length])
        assert not is_read_or_refused(folder)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bytes_are_read_or_refused(folder, data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    write(folder, bytes(content))
    is_read_or_refused(folder)


@given(HEADER, st.integers(0, 80), st.sampled_from([0, 0, 0, -1, 1, 2**40, 2**63]))
@settings(max_examples=150, deadline=None)
def test_headers_that_somebody_made_up_are_read_or_refused(folder, header, num_bytes, lie):
    text = json.dumps(header).encode()
    write(folder, struct.pack("<Q", (len(text) + lie) % 2**64) + text + bytes(num_bytes))
    is_read_or_refused(folder)


FILES = st.one_of(
    st.sampled_from(["model.safetensors", "gone.safetensors", "../model.safetensors", "/etc/passwd", ""]), JSON
)
INDICES: st.SearchStrategy[Any] = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"weight_map": st.one_of(JSON, st.dictionaries(st.sampled_from(["first.weight", "x"]), FILES))}
    ),
)


@given(INDICES)
@settings(max_examples=150, deadline=None)
def test_indices_that_somebody_made_up_are_read_or_refused(folder, index):
    write(folder, GOOD)
    (folder / INDEX).write_text(json.dumps(index))
    is_read_or_refused(folder)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b'{"weight_map": {"a": "\\u0000"}}'])
def test_indices_that_are_no_json_or_name_no_file_are_refused(folder, content):
    write(folder, GOOD)
    (folder / INDEX).write_bytes(content)
    assert not is_read_or_refused(folder)
