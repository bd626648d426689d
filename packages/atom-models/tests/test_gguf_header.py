"""The GGUF header reader: what it reads, and that no damage gets past it."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_models import CheckpointError, open_checkpoint
from atom_models.checkpoint import read_gguf
from atom_models.checkpoint.gguf_config import gguf_config
from atom_models.checkpoint.gguf_file import TENSOR_TYPES


def write_file(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.uint32", 7)
    writer.add_float32("a.float32", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "né")
    writer.add_array("a.strings", ["x", "", "北京"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_tensor("first.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("second.weight", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory):
    return write_file(tmp_path_factory.mktemp("gguf") / "good.gguf").read_bytes()


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def make_bytes(*, magic=b"GGUF", version=3, num_tensors=1, num_keys=1, keys=None, tensor=None, data=bytes(64)):
    keys = string("k") + struct.pack("<II", 4, 1) if keys is None else keys
    tensor = string("t") + struct.pack("<IQIQ", 1, 4, 0, 0) if tensor is None else tensor
    header = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + keys + tensor
    return header + bytes(-len(header) % 32) + data


def make_tensor(name="t", dims=(4,), num_dims=None, kind=0, offset=0):
    num_dims = len(dims) if num_dims is None else num_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", num_dims, *dims, kind, offset)


def test_metadata_and_tensors_are_read(tmp_path, good_bytes):
    (tmp_path / "f.gguf").write_bytes(good_bytes)
    file = read_gguf(tmp_path / "f.gguf")
    assert file.metadata["a.uint32"] == 7
    assert file.metadata["a.float32"] == 0.5
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.string"] == "né"
    assert file.metadata["a.strings"] == ["x", "", "北京"]
    assert file.metadata["a.ints"] == [1, -2, 3]
    assert file.metadata.get("absent") is None
    first = file.tensors["first.weight"]
    assert (first.shape, first.type_name, first.num_bytes) == ((3, 4), "F32", 48)
    assert np.frombuffer(file.read(first), np.float32).tolist() == list(range(12))


def test_sizes_of_all_formats_are_those_of_the_gguf_library():
    for type_id, (name, block, num_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, num_bytes))


def test_all_formats_of_the_gguf_library_are_known_but_those_that_no_weight_has():
    known = {name for name, _, _ in TENSOR_TYPES.values()}
    of_library = {kind.name for kind in gguf.GGMLQuantizationType if kind <= max(TENSOR_TYPES)}
    assert of_library - known == {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}


@pytest.mark.parametrize(
    ("keys", "metadata"),
    [
        (b"", {}),
        (string("k") + struct.pack("<IIQ", 9, 8, 2) + string("x") + string("yz"), {"k": ["x", "yz"]}),
        (string("k") + struct.pack("<IIQH", 9, 2, 1, 7), {"k": [7]}),
        (string("general.alignment") + struct.pack("<II", 4, 4096), {"general.alignment": 4096}),
        (string("general.alignment") + struct.pack("<II", 4, 1), {"general.alignment": 1}),
    ],
    ids=["no keys", "texts", "numbers", "the widest alignment", "no alignment"],
)
def test_a_file_may_end_with_its_header(tmp_path, keys, metadata):
    whole = make_bytes(num_keys=len(metadata), num_tensors=0, keys=keys, tensor=b"")
    (tmp_path / "f.gguf").write_bytes(whole[: 24 + len(keys)])
    file = read_gguf(tmp_path / "f.gguf")
    assert (dict(file.metadata), file.tensors) == (metadata, {})


def test_rope_scaling_is_what_the_header_says(tmp_path):
    def rope(name, **scaling):
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_embedding_length(64)
        writer.add_head_count(4)
        for key in ("feed_forward_length", "block_count", "context_length", "vocab_size"):
            writer.add_uint32(f"llama.{key}", 8)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(5e5)
        for key, value in scaling.items():
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(f"llama.rope.{key.replace('__', '.')}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return gguf_config(read_gguf(tmp_path / name))[0]["rope_parameters"]

    assert rope("none.gguf") == {"rope_theta": 5e5, "rope_type": "default"}
    assert rope("partial.gguf", dimension_count=4) == {
        "rope_theta": 5e5,
        "rope_type": "default",
        "partial_rotary_factor": 0.25,
    }
    assert rope("yarn.gguf", scaling__type="yarn", scaling__factor=4.0, scaling__original_context_length=32) == {
        "rope_theta": 5e5,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    assert rope("linear.gguf", scaling__type="linear") == {"rope_theta": 5e5, "rope_type": "linear", "factor": 1.0}
    with pytest.raises(CheckpointError, match=r"scaling\.type is 'other'; supported: none, linear, yarn, longrope"):
        rope("other.gguf", scaling__type="other")


@pytest.mark.parametrize("version", [2, 3])
def test_the_handmade_file_of_the_cases_below_is_good(tmp_path, version):
    (tmp_path / "f.gguf").write_bytes(make_bytes(version=version))
    file = read_gguf(tmp_path / "f.gguf")
    assert (file.version, file.tensors["t"].shape) == (version, (4,))


HUGE = 1 << 63
CASES = {
    "empty": (b"", "is empty"),
    "other letters": (make_bytes(magic=b"GGML"), "does not start with the letters GGUF"),
    "version 1": (make_bytes(version=1), "version 1"),
    "version 4": (make_bytes(version=4), "version 4, and only little-endian versions 2 and 3"),
    "big endian": (make_bytes(version=3 << 24), "big-endian"),
    "big endian, version 2": (make_bytes(version=2 << 24), "big-endian"),
    "too short for a tensor": (make_bytes(num_keys=0, keys=b"", tensor=b"")[:24] + bytes(23), "tensors, more than"),
    "long enough for a tensor": (make_bytes(num_keys=0, keys=b"", tensor=b"")[:24] + bytes(24), "claims 0 dimensions"),
    "huge tensor count": (make_bytes(num_tensors=HUGE), "tensors, more than"),
    "huge key count": (make_bytes(num_keys=HUGE), "metadata keys, more than"),
    "key longer than the file": (make_bytes(keys=struct.pack("<Q", 1000) + b"k"), "ends inside a metadata key"),
    "key of gigabytes": (make_bytes(keys=struct.pack("<Q", HUGE) + b"k"), "claims a string of"),
    "key not utf-8": (make_bytes(keys=struct.pack("<Q", 1) + b"\xff" + struct.pack("<II", 4, 1)), "not UTF-8"),
    "key twice": (make_bytes(num_keys=2, keys=2 * (string("k") + struct.pack("<II", 4, 1))), "appears twice"),
    "unknown value type": (make_bytes(keys=string("k") + struct.pack("<II", 99, 1)), "unknown type 99"),
    "array of arrays": (make_bytes(keys=string("k") + struct.pack("<IIQ", 9, 9, 0)), "unsupported type 9"),
    "huge array": (make_bytes(keys=string("k") + struct.pack("<IIQ", 9, 4, HUGE)), "values in k, more than"),
    "huge string array": (make_bytes(keys=string("k") + struct.pack("<IIQ", 9, 8, HUGE)), "strings in k, more than"),
    "string array past the end": (
        make_bytes(keys=string("k") + struct.pack("<IIQQ", 9, 8, 1, 500)),
        "ends inside k",
    ),
    "no dimensions": (make_bytes(tensor=make_tensor(dims=())), "claims 0 dimensions"),
    "many dimensions": (make_bytes(tensor=make_tensor(num_dims=1 << 31)), "dimensions"),
    "empty dimension": (make_bytes(tensor=make_tensor(dims=(0,))), "does not divide"),
    "part of a block": (make_bytes(tensor=make_tensor(dims=(33,), kind=8)), "blocks of 32"),
    "unknown tensor type": (make_bytes(tensor=make_tensor(kind=77)), "unknown type 77"),
    "tensor past the end": (make_bytes(tensor=make_tensor(offset=64)), "but the tensor t ends at"),
    "offset that wraps": (make_bytes(tensor=make_tensor(offset=(1 << 64) - 8)), "but the tensor t ends at"),
    "size that wraps": (make_bytes(tensor=make_tensor(dims=(1 << 62, 4))), "but the tensor t ends at"),
    "tensor twice": (make_bytes(num_tensors=2, tensor=2 * make_tensor()), "appears twice"),
    "no data": (make_bytes(data=b""), "but the tensor t ends at"),
    "alignment 0": (make_bytes(keys=string("general.alignment") + struct.pack("<II", 4, 0)), "alignment is 0"),
    "alignment 33": (make_bytes(keys=string("general.alignment") + struct.pack("<II", 4, 33)), "alignment is 33"),
    "alignment 8192": (make_bytes(keys=string("general.alignment") + struct.pack("<II", 4, 8192)), "alignment is"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_corrupt_file_is_refused_in_one_line(tmp_path, case):
    content, says = CASES[case]
    (tmp_path / "f.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=says) as caught:
        read_gguf(tmp_path / "f.gguf")
    assert "f.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path, good_bytes):
    path = tmp_path / "f.gguf"
    # The last tensor is padded to the alignment: what is cut off there is no loss.
    last = len(good_bytes.rstrip(b"\0"))
    for length in range(0, last, 3):
        path.write_bytes(good_bytes[:length])
        with pytest.raises(CheckpointError):
            read_gguf(path)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bytes_are_read_or_refused_but_never_crash(good_bytes, tmp_path_factory, data):
    content = bytearray(good_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flipped") / "f.gguf"
    path.write_bytes(content)
    try:
        file = read_gguf(path)
    except CheckpointError:
        return
    assert all(len(file.read(tensor)) == tensor.num_bytes for tensor in file.tensors.values())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot read .*gone\.gguf"):
        read_gguf(tmp_path / "gone.gguf")


def test_an_architecture_without_name_mapping_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "f.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match="architecture 'mamba' cannot be loaded; supported: deepseek2, .*qwen3moe"
    ) as caught:
        open_checkpoint(tmp_path / "f.gguf")
    assert "\n" not in str(caught.value)


def test_a_header_that_lacks_a_number_is_refused(tmp_path, good_bytes):
    (tmp_path / "f.gguf").write_bytes(good_bytes)
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count is None, not a number"):
        open_checkpoint(tmp_path / "f.gguf")
