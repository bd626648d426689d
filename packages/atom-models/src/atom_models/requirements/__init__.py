"""What a model needs, from its config alone: weights, cache, and accelerators that hold them."""

from atom_models.requirements.accelerators import ACCELERATORS, Accelerator, UnknownAcceleratorError, find_accelerators
from atom_models.requirements.cache import PLANNED_FLOAT8, CacheGroup
from atom_models.requirements.layer_weights import LayerWeights, layer_weights
from atom_models.requirements.placement import DEVICE_COUNTS, Placement, place
from atom_models.requirements.requirements import ModelRequirements, RankShare, model_requirements
from atom_models.requirements.sharing import check_shared

__all__ = [
    "ACCELERATORS",
    "DEVICE_COUNTS",
    "PLANNED_FLOAT8",
    "Accelerator",
    "CacheGroup",
    "LayerWeights",
    "ModelRequirements",
    "Placement",
    "RankShare",
    "UnknownAcceleratorError",
    "check_shared",
    "find_accelerators",
    "layer_weights",
    "model_requirements",
    "place",
]
