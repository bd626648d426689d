"""What can run latent attention over a part of each context, in the order in which it is tried."""

from atom_kernels.attention.context import native_backend, reference, torch_backend, triton_backend

BACKENDS = tuple(module.BACKEND for module in (triton_backend, native_backend, torch_backend, reference))
