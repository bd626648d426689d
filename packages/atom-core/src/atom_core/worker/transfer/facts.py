"""`facts_of`: what two engines must have in common before one can read the other's pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache.pages import CachePages
from atom_models import open_checkpoint

# So many bytes of each file of weights are compared: its end, which is numbers in every format.
SAMPLE_BYTES = 1 << 16


def facts_of(config: EngineConfig, pages: CachePages) -> dict[str, str]:
    """The facts by name, in an order in which the first that differs says most."""
    model, speculation = config.model, config.speculation
    checkpoint = open_checkpoint(model.path)
    return {
        "architecture": model.architecture,
        "config.json": _short(json.dumps(checkpoint.config, sort_keys=True, default=str).encode()),
        "weights": "dummy" if model.load_dummy else _short(b"".join(_samples(model.path))),
        "dtype": model.dtype,
        "quantization": f"{model.quantization} ({model.model_impl})",
        "kv_cache_dtype": config.cache.format.name,
        "block_size": str(config.cache.block_size),
        "tensor_parallel_size": str(config.parallel.tensor_parallel_size),
        "speculation": "none" if speculation is None or not speculation.is_by_model else speculation.method,
        "groups of layers": " ".join(f"{group.spec}x{len(group.layers)}" for group in pages.groups),
        "cache layout": _short(repr((pages.groups, pages.places)).encode()),
    }


def _samples(path: Path) -> Iterator[bytes]:
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with file.open("rb") as opened:
            opened.seek(max(file.stat().st_size - SAMPLE_BYTES, 0))
            yield opened.read()


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
