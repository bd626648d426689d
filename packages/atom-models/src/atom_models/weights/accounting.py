"""What a model does with each tensor of a checkpoint, by the tensors' names and headers: nothing is left unsaid."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from atom_models.checkpoint import CheckpointError
from atom_models.layers.loadable import ChoosesNames, Loadable
from atom_models.quantization import Headers

# Tables that old checkpoints stored although they follow from the config.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached", ".masked_bias")
# Scales of keys and values in a cache of eight bits, in the spellings of several quantizers.
_CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale", ".output_scale")
_NAMES_SHOWN = 8


class Accounting:
    """The tensors that a model takes, and those that it may pass over.

    Attributes:
        layers: all that have weights.
        owners: the layer of each tensor that it takes, by the tensor's name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = loadable_layers(model)
        self.owners = {name: layer for layer in self.layers for name in layer.expected_weights()}
        self._ignored: frozenset[str] = frozenset().union(*(layer.ignored_weights for layer in self.layers))
        # Whole layers that a checkpoint has and the model does not use, such as those that predict further tokens.
        self._ignored_prefixes = tuple(
            prefix for module in model.modules() for prefix in getattr(module, "ignored_prefixes", ())
        )

    def ignores(self, name: str) -> bool:
        """Whether the model passes over a tensor knowingly."""
        is_known = name in self._ignored or name.endswith(_IGNORED_SUFFIXES) or name.startswith(self._ignored_prefixes)
        return is_known or self.is_cache_scale(name)

    def is_cache_scale(self, name: str) -> bool:
        """Whether it is a scale of cached keys and values that no layer takes."""
        is_other = name in self._ignored or name.startswith(self._ignored_prefixes)
        return name.endswith(_CACHE_SCALES) and not is_other

    def check(self, names: Collection[str], where: str) -> None:
        """Raises CheckpointError where a weight is missing, or one is there that nobody knows; it names them."""
        missing = [name for name in self.owners if name not in names]
        unexpected = [name for name in names if name not in self.owners and not self.ignores(name)]
        if missing or unexpected:
            parts = [_list("missing", missing), _list("unexpected", unexpected)]
            raise CheckpointError(f"{where} does not fit the model: {'; '.join(part for part in parts if part)}")


def check_fit(model: nn.Module, names: Collection[str], where: str, headers: Headers | None = None) -> Accounting:
    """Lets layers choose among the spellings of their weights, and refuses a checkpoint that does not fit.

    Args:
        names: of all tensors.
        headers: of the same, where they are known.

    Raises:
        CheckpointError: a weight is missing, unexpected, or of a wrong shape or dtype. No tensor was read.
    """
    for layer in model.modules():
        if isinstance(layer, ChoosesNames):
            layer.choose_names(names)
    accounting = Accounting(model)
    if headers is not None:
        _check_headers(accounting, headers)
    accounting.check(names, where)
    return accounting


def _check_headers(accounting: Accounting, headers: Headers) -> None:
    for layer in accounting.layers:
        for name, expected in layer.expected_weights().items():
            header = headers.tensors.get(name)
            reason = None if header is None else expected.why_not(header.shape, header.dtype)
            if reason is not None:
                raise CheckpointError(f"the weight {name} {reason}")


def loadable_layers(model: nn.Module) -> list[Loadable]:
    """The layers of a model that have weights."""
    return [module for module in model.modules() if isinstance(module, Loadable)]


def _list(kind: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {kind} weight{'s' * (len(names) > 1)}: {', '.join(names[:_NAMES_SHOWN])}{more}"
