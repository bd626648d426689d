"""`PublishedQuantization`: the layout that a config gives to each layer's matrix, by the layer's name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from atom_models.quantization.layouts import StoredLayout
from atom_models.quantization.published.names import BY_COMPONENT, Dialect, Rules


@dataclass(frozen=True)
class Choice:
    """The layout of one layer, and the rule of the config that chose it; a layout of None is not quantized."""

    layout: StoredLayout | None
    rule: str


@dataclass(frozen=True)
class PublishedQuantization:
    """The layouts that a config gives to layers.

    Attributes:
        name: the method's name, such as "compressed-tensors".
        groups: (rules, layout), the first that means a layer is its own; no rules mean every layer.
        skipped: rules of layers that are left as they are.
        dialect: how rules are read.
        cache_field: the field that declares scales for an fp8 KV cache, None if none does.
    """

    name: str
    groups: tuple[tuple[tuple[str, ...], StoredLayout | None], ...]
    skipped: tuple[str, ...] = ()
    dialect: Dialect = BY_COMPONENT
    cache_field: str | None = None

    def choose(self, layer_name: str) -> Choice:
        """What the config says of a linear, by its full name in the checkpoint."""
        rule = self._skipped.first_match(layer_name)
        if rule is not None:
            return Choice(None, f"left out by {rule!r}")
        for rules, layout in self._groups:
            rule = rules.first_match(layer_name) if rules else None
            if rule is not None or rules is None:
                chosen = "meant" if layout else "left out"
                return Choice(layout, f"{chosen} by {rule!r}" if rules else f"as all of {self.name}")
        return Choice(None, "meant by no rule")

    @cached_property
    def _skipped(self) -> Rules:
        return Rules(self.skipped, self.dialect)

    @cached_property
    def _groups(self) -> list[tuple[Rules | None, StoredLayout | None]]:
        return [(Rules(rules, self.dialect) if rules else None, layout) for rules, layout in self.groups]
