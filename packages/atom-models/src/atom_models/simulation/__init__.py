"""How long a step of a model would take on a named system: from what its layers must do, rates of devices and links."""

from atom_models.simulation.links import Link
from atom_models.simulation.predict import Prediction, Scaling, predict, scaling_of
from atom_models.simulation.step_time import PARTS, Ranks, StepTime
from atom_models.simulation.systems import SYSTEMS, Device, System, UnknownSystemError, find_system

__all__ = [
    "PARTS",
    "SYSTEMS",
    "Device",
    "Link",
    "Prediction",
    "Ranks",
    "Scaling",
    "StepTime",
    "System",
    "UnknownSystemError",
    "find_system",
    "predict",
    "scaling_of",
]
