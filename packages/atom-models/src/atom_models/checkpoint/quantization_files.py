"""Files beside `config.json` in which quantizers say what they did, brought to a `quantization_config`. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

# NVIDIA's modelopt writes the first, AutoGPTQ and AutoAWQ the others.
MODELOPT = "hf_quant_config.json"
OLDER = ("quantize_config.json", "quant_config.json")
NAMES = (MODELOPT, *OLDER)
# Fields that only AutoAWQ writes.
_AWQ_FIELDS = ("w_bit", "q_group_size", "zero_point")


def quantization_beside(folder: Path, read: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any] | None:
    """What those files say of a checkpoint whose `config.json` does not say how it is quantized; None without one.

    Args:
        read: a file of JSON -> the object that it holds.

    Raises:
        CheckpointError: a file cannot be read, or does not say by which method.
    """
    found = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if found is None:
        return None
    given = read(found)
    return _of_modelopt(found, given) if found.name == MODELOPT else _of_older(found, given)


def _of_modelopt(path: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """``{"producer": ..., "quantization": {"quant_algo": ..., "exclude_modules": [...]}}``."""
    fields = given.get("quantization")
    if not isinstance(fields, Mapping):
        raise CheckpointError(f"{path}: quantization is {fields!r}, not an object with quant_algo")
    if fields.get("quant_algo") is None:
        return None  # the KV cache alone
    return {"quant_method": "modelopt", **fields}


def _of_older(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Their fields are those of a `quantization_config`, but for the method."""
    if "quant_method" in given:
        return dict(given)
    if any(name in given for name in _AWQ_FIELDS):
        return {"quant_method": "awq", **given}
    if "bits" in given:
        return {"quant_method": "gptq", **given}
    raise CheckpointError(
        f"{path} names no quant_method, and has the fields of neither AutoGPTQ (bits) nor AutoAWQ (w_bit)"
    )
