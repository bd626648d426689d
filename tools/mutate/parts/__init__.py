"""The parts of the product that mistakes are put into."""

from tools.mutate.parts.adapters import ADAPTERS
from tools.mutate.parts.engines import ENGINES
from tools.mutate.parts.layers import LAYERS
from tools.mutate.parts.limits import LIMITS
from tools.mutate.parts.loader import LOADER
from tools.mutate.parts.mixers import MIXERS
from tools.mutate.parts.output import OUTPUT
from tools.mutate.parts.part import Part
from tools.mutate.parts.quantization import QUANTIZATION
from tools.mutate.parts.sampler import SAMPLER
from tools.mutate.parts.scheduler import SCHEDULER
from tools.mutate.parts.settings import SETTINGS

_LISTED = (ADAPTERS, SAMPLER, SCHEDULER, LOADER, LAYERS, OUTPUT, QUANTIZATION, MIXERS, LIMITS, SETTINGS, ENGINES)
PARTS: dict[str, Part] = {part.name: part for part in _LISTED}

__all__ = ["PARTS", "Part"]
