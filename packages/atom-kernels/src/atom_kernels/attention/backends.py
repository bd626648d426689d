"""What can run attention over pages, in the order in which it is tried."""

from atom_kernels.aiter.attention import paged_backend
from atom_kernels.attention import native_backend, reference, torch_backend
from atom_kernels.attention.triton import backend as triton_backend

BACKENDS = tuple(module.BACKEND for module in (paged_backend, triton_backend, native_backend, torch_backend, reference))
