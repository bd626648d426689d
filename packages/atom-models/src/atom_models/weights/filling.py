"""Hands every tensor to its layer, finishes each layer at its last one, and accounts for every name."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable

import torch
from torch import nn

from atom_models.checkpoint import CheckpointError
from atom_models.layers.loadable import ChoosesNames, Loadable, expected_weights, loadable
from atom_models.layers.mixers.mixer import Mixer
from atom_models.quantization import Headers

logger = logging.getLogger(__name__)

# Tables that old checkpoints stored although they follow from the config.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached", ".masked_bias")
# Scales of keys and values in a cache of eight bits, in the spellings of several quantizers.
_CACHE_SCALES = (
    *(".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale", ".output_scale"),
    *(".k_cache.scale", ".v_cache.scale"),
)
_NAMES_SHOWN = 8
# Plain numbers, of which NaN and infinity are none that a model could have learned.
_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def fill(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], where: str) -> int:
    """Loads `tensors` into the layers of `model`, each of which is packed once its last tensor came.

    Args:
        where: the tensors come from, for messages.

    A tensor that holds NaN or infinity is told in a warning: the model may get by without those numbers.

    Returns:
        The number of tensors that layers took.

    Raises:
        CheckpointError: a tensor is missing, unexpected, given twice, or not as its layer expects it.
    """
    filling = _Filling(model, where)
    for name, tensor in tensors:
        filling.take(name, tensor)
    return filling.end()


def check_fit(model: nn.Module, available: Collection[str], where: str, headers: Headers | None = None) -> list[str]:
    """Lets layers choose among the spellings of their weights, and refuses a checkpoint that does not fit.

    Args:
        available: the names of all tensors.
        headers: what their headers say, where that is known.

    Returns:
        The names that layers take, one layer's after another's.

    Raises:
        CheckpointError: a weight is missing, unexpected, or of a wrong shape or dtype. No tensor was read.
    """
    choose_names(model, available)
    filling = _Filling(model, where)
    unexpected = sorted(name for name in available if name not in filling.owners and filling.is_used(name))
    filling.account(available, unexpected)
    if headers is not None:
        check_headers(model, headers)
    return list(filling.owners)


def choose_names(model: nn.Module, available: Collection[str]) -> None:
    """Lets layers whose weights go by several names choose those that are there."""
    for layer in model.modules():
        if isinstance(layer, ChoosesNames):
            layer.choose_names(available)


def check_headers(model: nn.Module, headers: Headers) -> None:
    """Refuses tensors of wrong shapes or dtypes before the first is read; names must have been chosen."""
    for layer in loadable(model):
        for name, expected in expected_weights(layer).items():
            header = headers.tensors.get(name)
            reason = None if header is None else expected.why_not(header.shape, header.dtype)
            if reason is not None:
                raise CheckpointError(f"the weight {name} {reason}")


class _Filling:
    """A model that is being loaded.

    Names need not be known before: a tensor that nobody expects waits until a later name has shown which of its
    spellings a layer is stored in. In published files that name is among the first of its layer.
    """

    def __init__(self, model: nn.Module, where: str) -> None:
        self._where = where
        self._layers = loadable(model)
        # Those of which no tensor came yet.
        self._choosing = {id(layer): layer for layer in self._layers if isinstance(layer, ChoosesNames)}
        self.owners: dict[str, Loadable] = {}
        self._outstanding: dict[int, int] = {}
        for layer in self._layers:
            self._expect(layer)
        self._ignored = frozenset().union(*(layer.ignored_weights() for layer in self._layers))
        # Whole layers that a checkpoint has and the model does not use, such as those that predict further tokens.
        self._ignored_prefixes = tuple(
            prefix for module in model.modules() for prefix in getattr(module, "ignored_prefixes", ())
        )
        self._seen: set[str] = set()
        self._waiting: dict[str, torch.Tensor] = {}
        self._num_cache_scales = 0
        self._has_float8_cache = any(isinstance(one, Mixer) and one.problem.cache.is_float8 for one in model.modules())
        self._not_finite: list[str] = []

    def take(self, name: str, tensor: torch.Tensor) -> None:
        if name not in self.owners and self.is_used(name):
            self._waiting[name] = tensor
            self._learn(name)
        elif name in self.owners:
            self._load(name, tensor)

    def end(self) -> int:
        """Accounts for all names, and finishes the layers that own no tensor."""
        self.account(self._seen, [*self._waiting])
        if self._not_finite:
            line = (
                "%s holds NaN or infinity: %s; requests that meet them end with an error. Download or convert it anew"
            )
            logger.warning(line, self._where, _list("damaged", self._not_finite))
        for layer in self._layers:
            if not expected_weights(layer):
                layer.finish()
        return len(self._seen)

    def is_used(self, name: str) -> bool:
        """Whether a tensor that no layer expects should have been used; False for those known to be needless."""
        if name in self._ignored or name.endswith(_IGNORED_SUFFIXES) or name.startswith(self._ignored_prefixes):
            return False
        if name.endswith(_CACHE_SCALES):
            self._num_cache_scales += 1
            return False
        return True

    def account(self, given: Collection[str], unexpected: list[str]) -> None:
        """Refuses a model of which not every tensor is given, and tensors that nobody takes."""
        if (
            self._num_cache_scales
            and self._has_float8_cache
            and not any(name.endswith(_CACHE_SCALES) for name in self.owners)
        ):
            line = "%s has %d scales for an fp8 KV cache: not used, the scale is 1"
            logger.warning(line, self._where, self._num_cache_scales)
        missing = [name for name in self.owners if name not in given]
        if missing or unexpected:
            parts = [_list("missing", missing), _list("unexpected", unexpected)]
            raise CheckpointError(f"{self._where} does not fit the model: {'; '.join(part for part in parts if part)}")

    def _expect(self, layer: Loadable) -> None:
        expected = expected_weights(layer)
        self.owners.update(dict.fromkeys(expected, layer))
        self._outstanding[id(layer)] = len(expected)

    def _learn(self, name: str) -> None:
        """Load what waited for it, if some layer expects tensors by other names because of this one."""
        for layer in self._choosing.values():
            before = expected_weights(layer).keys()
            layer.choose_names({name})
            if expected_weights(layer).keys() != before:
                for other in before:
                    del self.owners[other]
                self._expect(layer)
                self._ignored |= layer.ignored_weights()
                for waiting in [one for one in self._waiting if one in self.owners]:
                    self._load(waiting, self._waiting.pop(waiting))
                return

    def _load(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._seen:
            raise CheckpointError(f"{self._where} holds the weight {name} twice")
        self._seen.add(name)
        layer = self.owners[name]
        self._choosing.pop(id(layer), None)
        if not _is_finite(tensor):
            self._not_finite.append(name)
        try:
            layer.load_shard(name, tensor)
        except CheckpointError as error:
            # Layouts know what is wrong with numbers, but not whose they are.
            raise error if name in str(error) else CheckpointError(f"the weight {name}: {error}") from None
        self._outstanding[id(layer)] -= 1
        if not self._outstanding[id(layer)]:
            layer.finish()


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether plain numbers are all finite; a third of a second for each GB on one core."""
    if tensor.dtype not in _PLAIN or not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)  # NaN is both
    return math.isfinite(least) and math.isfinite(most)


def _list(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {kind} weight{'s' * (len(names) > 1)}: {', '.join(names[:_NAMES_SHOWN])}{more}"
