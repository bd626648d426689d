"""What published configs say of each layer's weights."""

from atom_models.quantization.published.readers import Choice, PublishedQuantization, read_published

__all__ = ["Choice", "PublishedQuantization", "read_published"]
