"""Weights of a model of transformers, under the names that its checkpoints have, one group of tensors at a time.

transformers' own table of conversions says which tensors of a file become which parameter (experts are stacked, gate
and up are joined): https://huggingface.co/docs/transformers/weightconverter.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_models.fallback.admission import refuse
from atom_models.fallback.attention import LAYER
from atom_models.layers.loadable import check_shape, expected_weights
from atom_models.layers.weights import RankWeight, Weights
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext

# A module, and the name of a parameter or buffer of its own.
_Holder = tuple[nn.Module, str]


class WeightGroup(nn.Module):
    """Tensors of the checkpoint that become parameters together; a `Loadable`.

    Args:
        shapes: the shapes of the tensors, by their names in the checkpoint.
        convert: makes of these tensors the parameters by their names in the model.
        holders: who holds each parameter of the model; tied ones have several.
        ignored: names under which checkpoints may hold tied parameters once more.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        convert: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
        holders: Mapping[str, list[_Holder]],
        context: BuildContext,
        ignored: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._shapes, self._convert, self._context = shapes, convert, context
        # Behind a function, so that torch does not count these modules as parts of this one.
        self._holders = lambda: holders
        self._ignored = frozenset(ignored)
        self._loaded: dict[str, torch.Tensor] = {}
        # Before loading: afterwards the parameters have memory.
        dtypes = {_value(*places[0]).dtype for places in holders.values()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else context.dtype
        parameters = [_value(*places[0]) for places in holders.values()]
        self._on_rank = [RankWeight(tuple(one.shape), one.numel() * one.dtype.itemsize) for one in parameters]

    @property
    def holders(self) -> set[nn.Module]:
        """The modules whose parameters these become."""
        return {module for places in self._holders().values() for module, _ in places}

    def weights(self) -> list[Weights]:
        expected = {name: ExpectedWeight(shape, self._dtype) for name, shape in self._shapes.items()}
        return [Weights(lambda: expected, self._on_rank)]

    def ignored_weights(self) -> frozenset[str]:
        return self._ignored

    def load_shard(self, name: str, tensor: torch.Tensor) -> None:
        expected = expected_weights(self)[name]
        check_shape(name, tensor, expected)
        self._loaded[name] = tensor.to(device=self._context.device, dtype=expected.dtype, copy=True)

    def finish(self) -> None:
        loaded, self._loaded = self._loaded, {}
        converted = self._convert({name: loaded[name] for name in self._shapes})
        loaded.clear()
        for target, places in self._holders().items():
            _put(places, converted.pop(target))


def weight_groups(model: Any, context: BuildContext, names: Iterable[str] = ()) -> list[WeightGroup]:
    """All weights of `model`, whose parameters have no memory yet.

    Args:
        names: names of the checkpoint's tensors: what earlier releases saved has some others than today's.

    Raises:
        FallbackRefusedError: its weights do not come back from the names of its checkpoints.
    """
    from transformers.core_model_loading import revert_weight_conversion

    holders, first_names = _holders(model)
    _widen(model, holders, context.dtype)
    state = {name: _value(*places[0]) for name, places in holders.items()}
    conversions = _Conversions(model)
    stored = conversions.spelled_as(names, revert_weight_conversion(model, dict(state)))
    groups = conversions.groups(stored)
    missing = sorted(state.keys() - {target for targets in groups.values() for target in targets[1]})
    if missing:
        raise refuse(model.config.model_type, f"nothing in its checkpoints becomes {missing[0]}")
    tied: dict[str, list[str]] = {}
    for name, first in first_names.items():
        tied.setdefault(first, []).append(name)
    return [
        WeightGroup(
            {name: tuple(stored[name].shape) for name in sources},
            convert,
            {target: holders[target] for target in targets},
            context,
            [name for target in targets for name in tied.get(target, ())],
        )
        for sources, targets, convert in groups.values()
    ]


class _Conversions:
    """Which tensors of a checkpoint become which parameters."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        self._model, self._known = model, dict(model.state_dict())
        found = get_model_conversion_mapping(model, add_legacy=False) or []
        self._renamings = [one for one in found if isinstance(one, WeightRenaming)]
        self._converters = [one for one in found if isinstance(one, WeightConverter)]

    def spelled_as(self, names: Iterable[str], stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of `stored`, by those of `names` that mean the same."""
        found = {self._target(name): name for name in names if name not in stored}
        return {found.get(self._target(name), name): tensor for name, tensor in stored.items()}

    def _target(self, name: str) -> tuple[str, str | None]:
        """The parameter that a tensor becomes, or a part of; and the pattern of the conversion that makes it."""
        from transformers.core_model_loading import rename_source_key

        prefix = self._model.base_model_prefix
        target, pattern = rename_source_key(name, self._renamings, self._converters, prefix, self._known)
        return (name, None) if target not in self._known and name in self._known else (target, pattern)

    def groups(self, stored: Mapping[str, torch.Tensor]) -> dict[str, tuple[list[str], list[str], Any]]:
        """By the first parameter: names of tensors, names of parameters, and what turns the ones into the others."""
        from transformers.core_model_loading import dot_natural_key

        sources: dict[str, list[tuple[str, str | None]]] = {}
        for name in sorted(stored, key=dot_natural_key):
            target, pattern = self._target(name)
            sources.setdefault(target, []).append((name, pattern))
        groups = {}
        for target, found in sources.items():
            names = [name for name, _ in found]
            convert = self._rename(names[0], target) if found[0][1] is None else self._converter(target, found)
            made = convert({name: torch.empty_like(stored[name], device="meta") for name in names})
            groups[target] = (names, list(made), convert)
        return groups

    def _rename(self, name: str, target: str) -> Any:
        return lambda tensors: {target: tensors[name]}

    def _converter(self, target: str, found: list[tuple[str, str | None]]) -> Any:
        patterns = dict(found)
        template = next(one for one in self._converters if found[0][1] in one.source_patterns)

        def convert(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            converter: Any = copy.deepcopy(template)
            for name, pattern in patterns.items():
                converter.add_tensor(target, name, pattern, lambda name=name: tensors.pop(name))
            made = converter.convert(target, model=self._model, config=self._model.config)
            return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}

        return convert


def _holders(model: Any) -> tuple[dict[str, list[_Holder]], dict[str, str]]:
    """Who holds each parameter and stored buffer, by its first name; and the first name of each other name."""
    holders: dict[str, list[_Holder]] = {}
    seen: dict[int, str] = {}
    others: dict[str, str] = {}
    for prefix, module in model.named_modules():
        own = [*module._parameters.items()]
        own += [item for item in module._buffers.items() if item[0] not in module._non_persistent_buffers_set]
        for attribute, value in own:
            if value is None:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            first = seen.setdefault(id(value), name)
            holders.setdefault(first, []).append((module, attribute))
            if first != name:
                others[name] = first
    return holders, others


def _widen(model: Any, holders: Mapping[str, list[_Holder]], dtype: torch.dtype) -> None:
    """Makes float32 what the model says must not be rounded to 16 bits."""
    parts = set(model._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        parts |= set(model._keep_in_fp32_modules or ())
    if not parts or dtype == torch.float32:
        return
    wide = re.compile("|".join(rf"(^|\.){re.escape(part)}($|\.)" for part in parts))
    for name, places in holders.items():
        if wide.search(name):
            _put(places, _value(*places[0]).detach().to(torch.float32))


def _value(module: nn.Module, attribute: str) -> torch.Tensor:
    value = module._parameters.get(attribute)
    value = module._buffers[attribute] if value is None else value
    if value is None:
        raise RuntimeError(f"{type(module).__name__} lost its {attribute}")
    return value


def _put(places: list[_Holder], tensor: torch.Tensor) -> None:
    parameter = nn.Parameter(tensor, requires_grad=False)
    for module, attribute in places:
        if attribute in module._parameters:
            module._parameters[attribute] = parameter
        else:
            module._buffers[attribute] = tensor
        layer = getattr(module, LAYER, None)
        if layer is not None and not tensor.is_meta:
            layer.take_parameter(attribute, tensor)
