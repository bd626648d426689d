"""Reads the adapter of a folder that PEFT wrote, and checks it against the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from atom_models.adapters.adapter import Adapter, LowRank
from atom_models.adapters.adapter_config import WEIGHTS, AdapterConfig
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.owners import OwnModules, among_owners, of_decoder, within_decoder
from atom_models.checkpoint import CheckpointError
from atom_models.quantization.published.headers import Header
from atom_models.weights.safetensors_source import SafetensorsSource

# Those of tables of rows, which are one-hot linears, have another name and no last part.
_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?:embedding_)?(?P<matrix>[AB])(?:\.default)?(?:\.weight)?"
)
_OF_TOWER = re.compile(r"(?:visual|vision_\w+|\w+_projector)\.")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def read_adapter(
    folder: Path, linears: Mapping[str, tuple[int, int]], *, max_rank: int, own_modules: OwnModules | None = None
) -> Adapter:
    """The adapter of a folder.

    Args:
        linears: the names of the linears that may have one, with their inputs and outputs over all ranks; tables of
            rows may be among them.
        max_rank: the largest rank that is served.
        own_modules: the model's names for modules of the file; None where it is a decoder.

    Raises:
        AdapterError: it does not fit the model; no tensor is read before all of their shapes are known to fit.
    """
    own_modules = own_modules or of_decoder(linears)
    config = AdapterConfig.read(folder, max_rank=max_rank)
    file = folder / WEIGHTS
    source = SafetensorsSource((file,))
    try:
        headers = source.headers().tensors
        names = _names_of_matrices(headers, linears, own_modules)
        for module, own in names.items():
            found = {matrix: headers[name] for matrix, name in own.items()}
            shapes = [linears[one] for one in own_modules(module)]
            _check(module, found, (shapes[0][0], sum(outputs for _, outputs in shapes)), config, max_rank=max_rank)
        tensors = dict(source.read([name for own in names.values() for name in own.values()]))
    except (CheckpointError, AdapterError) as error:
        raise AdapterError(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    matrices: dict[str, LowRank] = {}
    for module, own in names.items():
        a, b = (tensors[own[matrix]].float() for matrix in "AB")
        if not (a.isfinite().all() and b.isfinite().all()):
            raise AdapterError(f"{file}: the matrices of {module} hold numbers that are not finite")
        low_rank = LowRank(a, b * config.scaling_of(module))
        matrices |= among_owners(own_modules(module), low_rank, linears)
    return Adapter(matrices)


def _names_of_matrices(
    headers: Mapping[str, Header], linears: Mapping[str, tuple[int, int]], own_modules: OwnModules
) -> dict[str, dict[str, str]]:
    """The names of A and B in the file, by the module there; what the model passes over is left out."""
    found: dict[str, dict[str, str]] = {}
    called: dict[tuple[str, ...], str] = {}
    for name in headers:
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise AdapterError(f"the tensor {name} is neither A nor B of a linear: nothing else is served")
        module = parts["module"]
        owners = own_modules(module)
        if not all(owner in linears for owner in owners):
            raise AdapterError(_why_not(module, linears))
        if not owners:
            continue
        if (other := called.setdefault(owners, module)) != module:
            raise AdapterError(f"{module} and {other} are two names of one linear")
        own = found.setdefault(module, {})
        if parts["matrix"] in own:
            raise AdapterError(f"{module} has two matrices {parts['matrix']}")
        own[parts["matrix"]] = name
    if not found:
        raise AdapterError("it holds no tensors")
    for module, own in found.items():
        if len(own) < 2:
            raise AdapterError(f"{module} has lora_{next(iter(own))} alone: A and B belong together")
    return found


def _why_not(module: str, linears: Iterable[str]) -> str:
    if ".experts." in f".{module}.":
        return f"{module} is of experts, whose matrices take no adapters: train without them, or merge the adapter"
    if _OF_TOWER.match(within_decoder(module)):
        return (
            f"{module} is of the part that sees, which takes no adapters: train without it (exclude_modules of PEFT), "
            "or merge the adapter"
        )
    if module.rpartition(".")[2] in ("lm_head", "embed_tokens"):
        return f"{module} takes no adapters: neither the embedding nor the head does; merge the adapter"
    some = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
    return f"the model has no linear {module} that takes adapters; those that do are called {some}"


def _check(
    module: str,
    matrices: Mapping[str, Header],
    shape: tuple[int, int],
    config: AdapterConfig,
    *,
    max_rank: int,
) -> None:
    rank, (num_inputs, num_outputs) = config.rank_of(module), shape
    if rank > max_rank:
        raise AdapterError(f"the rank of {module} is {rank}, above max_lora_rank {max_rank}: raise that")
    for matrix, shape in (("A", (rank, num_inputs)), ("B", (num_outputs, rank))):
        header = matrices[matrix]
        if header.shape != shape:
            raise AdapterError(
                f"lora_{matrix} of {module} has the shape {list(header.shape)}; the model and the rank in "
                f"adapter_config.json make it {list(shape)}"
            )
        if header.dtype not in _DTYPES:
            raise AdapterError(f"lora_{matrix} of {module} is {header.dtype}; allowed are float32, bfloat16, float16")
