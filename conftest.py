"""Fixtures for every package's tests: tiny checkpoints, written once for each session."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["marked_files", "stop_after", "time_budget", "verdicts"]

try:
    import hypothesis
except ImportError:  # the kernels' tests must pass where nothing but torch and pytest is installed
    pass
else:
    # The same examples in each run, and none judged by the clock; `--hypothesis-profile default` looks for others.
    hypothesis.settings.register_profile(
        "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("repeatable")

# Those that commands set: the root, and one for each package.
_LOGGERS = (None, "atom_kernels", "atom_models", "atom_core", "atom_server")


# A test that imported more takes long wherever garbage is collected.
_MANY_MODULES = 100
_num_spared = 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look for garbage among it took a fifth of the time of a collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    _spare_what_is_imported()


def pytest_runtest_logfinish() -> None:
    if len(sys.modules) > _num_spared + _MANY_MODULES:
        _spare_what_is_imported()


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that runs in a test's process sends the log to the test's stderr, which the next test has no more."""
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in _LOGGERS}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def quiet_transformers() -> None:
    """transformers tells of errors only, and draws no progress bars."""
    import transformers
    import transformers.modeling_utils

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    _spare_what_is_imported()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF, downloaded if need be: for slow tests only."""
    from atom_models import resolve_model

    return resolve_model("smollm2")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Llama with grouped KV heads and untied embeddings."""
    return _tiny(tmp_path_factory, "tiny-llama")


@pytest.fixture(scope="session")
def tiny_llama_tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with tied embeddings."""
    return _tiny(tmp_path_factory, "tiny-llama-tied", tie=True, seed=1)


@pytest.fixture(scope="session")
def tiny_llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with Llama 3's rope scaling."""
    return _tiny(tmp_path_factory, "tiny-llama3", rope="llama3", seed=2)


@pytest.fixture(scope="session")
def tiny_llama2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with as many KV heads as query heads, as in Llama 2."""
    return _tiny(tmp_path_factory, "tiny-llama2", kv_heads=4, seed=3)


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny_family(name)`` gives the checkpoint of a family of `tiny_architectures`, written at the first call."""
    written: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        from tiny_architectures import make_tiny

        if name not in written:
            written[name] = make_tiny(name, tmp_path_factory.mktemp("families") / name)
        return written[name]

    return folder_of


def _spare_what_is_imported() -> None:
    """Engines that close collect garbage: what is imported is none, and takes long to go through."""
    global _num_spared
    gc.collect()
    gc.freeze()
    _num_spared = len(sys.modules)


def _tiny(tmp_path_factory: pytest.TempPathFactory, name: str, **options) -> Path:
    # Imported here: the kernels' tests must pass where nothing but torch and pytest is installed.
    from tiny_models import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("checkpoints") / name, **options)
