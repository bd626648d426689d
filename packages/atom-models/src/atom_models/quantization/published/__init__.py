"""What published configs and files say of each layer's weights."""

from atom_models.quantization.published.cache_scales import CacheScales, StoredScale
from atom_models.quantization.published.headers import Header, Headers
from atom_models.quantization.published.published_quantization import Choice, PublishedQuantization
from atom_models.quantization.published.readers import read_published
from atom_models.quantization.published.stored_quantization import StoredQuantization

__all__ = [
    "CacheScales",
    "Choice",
    "Header",
    "Headers",
    "PublishedQuantization",
    "StoredQuantization",
    "StoredScale",
    "read_published",
]
