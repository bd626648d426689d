"""`BuildContext`: everything that a layer must know and a model file must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from atom_kernels.platform import Platform, detect_platform
from atom_kernels.protocols import CacheFormat, Collectives, RowDispatchers
from atom_models.groups import UNSHARED, Groups, Stage
from atom_models.layers.mixers.mixer import planned_host
from atom_models.layers.mixture.placement import PlaceExperts, place_contiguously
from atom_models.quantization import UNQUANTIZED

if TYPE_CHECKING:
    from atom_kernels.mixers import MixerProblem
    from atom_models.layers.mixers.mixer import MixerHost
    from atom_models.quantization import Quantization

    MixerHostFactory = Callable[[MixerProblem, str, "BuildContext"], MixerHost]


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """How a model is built; every layer takes it, and passes on what it does not use.

    Attributes:
        platform: what operators are selected for; None probes this machine.
        dtype: the dtype of weights that stay dense, and of activations.
        device: where weights and tables live.
        groups: the ranks beside this one, by what they share with it.
        quantization: how each layer is stored and held, by its name.
        mixer_host: ``(problem, layer name, context)`` -> what runs a layer that has a cache; by default a kernel that
            fits `platform`, over the caches of the forward context.
        cache: how numbers are cached, such as keys and values; None caches them in `dtype`.
        block_size: tokens of a cache block.
        max_model_len: longest sequence that will be run, for tables of positions; None is the model's own.
        model_impl: what serves the checkpoint: "atom" is a file of this package, "transformers" its layers over our
            attention, and "auto" the first where there is one.
        aux_hidden_states: ids of layers whose outputs `forward` returns as well (drafters read them).
        place_experts: says which rank holds which experts of a mixture, where `groups` spreads whole ones.
        expert_exchange: how rows meet experts that `groups` spreads over engines: "gather", "all-to-all", or "auto" for
            whichever should take less time in a step.
        row_dispatchers: a library that carries these rows in place of that; None without.
        num_drafts: drafts of a request that a step may verify: layers with states keep one for each.
        takes_adapters: linears can take adapters.
        language_model_only: what sees pictures is not built, and its weights are passed over.
        sees_ahead: tokens of a step may see later ones of it, as those of a picture do in some models.
    """

    platform: Platform = field(default_factory=detect_platform)
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    groups: Groups = UNSHARED
    quantization: Quantization = UNQUANTIZED
    mixer_host: MixerHostFactory = planned_host
    cache: CacheFormat | None = None
    block_size: int = 16
    max_model_len: int | None = None
    model_impl: str = "auto"
    aux_hidden_states: tuple[int, ...] = ()
    place_experts: PlaceExperts = place_contiguously
    expert_exchange: str = "auto"
    row_dispatchers: RowDispatchers | None = None
    num_drafts: int = 0
    takes_adapters: bool = False
    language_model_only: bool = False
    sees_ahead: bool = False

    @property
    def collectives(self) -> Collectives:
        """The ranks that share each layer."""
        return self.groups.tensor

    @property
    def stage(self) -> Stage:
        """The layers that are built, of all of a model's."""
        return self.groups.stage

    @property
    def cache_format(self) -> CacheFormat:
        """How layers cache numbers."""
        return self.cache or CacheFormat(self.dtype_name)

    @property
    def dtype_name(self) -> str:
        """`dtype` as protocols spell it, such as "bfloat16"."""
        return str(self.dtype).removeprefix("torch.")

    def split(self, count: int, what: str) -> int:
        """This rank's share of `count`.

        Raises:
            ValueError: the ranks cannot share it evenly; `what` names it.
        """
        size = self.collectives.size
        if count % size:
            raise ValueError(f"{what} is {count}, which {size} tensor-parallel ranks cannot share evenly")
        return count // size

    def even_run(self, count: int, what: str) -> tuple[int, int]:
        """This rank's share of `count` as (first, last + 1).

        Raises:
            ValueError: see `split`.
        """
        each = self.split(count, what)
        return self.collectives.rank * each, (self.collectives.rank + 1) * each

    def run(self, count: int) -> tuple[int, int]:
        """Those of `count`, at least one for each rank, that this rank has, as (first, last + 1).

        Where they do not come out even, the first ranks have one more.
        """
        (each, left), rank = divmod(count, self.collectives.size), self.collectives.rank
        first = rank * each + min(rank, left)
        return first, first + each + (rank < left)
