"""What can run latent attention over a part of each context, in the order in which it is tried."""

from atom_kernels.attention.context import native_backend, reference, torch_backend

BACKENDS = tuple(module.BACKEND for module in (native_backend, torch_backend, reference))
