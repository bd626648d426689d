"""The environment of the process in which an engine is measured."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Without a network, without telemetry, and with the engine in the process that measures it.
VLLM = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# Where compiled kernels and models are kept by ours, the peer and what both stand on.
CACHES = ("TRITON_CACHE_DIR", "ATOM_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "VLLM_CACHE_ROOT")


def own_environment() -> dict[str, str]:
    """This process's own."""
    return dict(os.environ)


def environment_of(
    engine: str, peer_path: str | None, kernel_cache: Path | None, plugin_path: str | None = None
) -> dict[str, str]:
    """This process's own, with what `engine` needs; `kernel_cache` holds compiled kernels in place of the usual one.

    With a `plugin_path`, "atom" is vLLM with our plugin on that path, and "vllm" is vLLM without it.
    """
    environment = own_environment()
    if engine != "atom" or plugin_path:
        environment = VLLM | environment
        if peer_path:
            environment["PYTHONPATH"] = os.pathsep.join([peer_path, str(ROOT)])
    if plugin_path:
        environment |= {"PYTHONPATH": plugin_path, "ATOM_DISABLE_VLLM_PLUGIN": "0" if engine == "atom" else "1"}
    if kernel_cache is not None:
        environment |= {name: str(kernel_cache / name.lower()) for name in CACHES}
    return environment
