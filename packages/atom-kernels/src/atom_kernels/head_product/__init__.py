"""Each head's rows times a matrix of its own, as latent attention absorbs queries and makes values."""

from atom_kernels.head_product.contract import HeadProductProblem, head_product
from atom_kernels.head_product.ops import HEAD_PRODUCT, OPS

__all__ = ["HEAD_PRODUCT", "OPS", "HeadProductProblem", "head_product"]
