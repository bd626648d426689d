"""What can run a lightning index, in the order in which it is tried."""

from atom_kernels.attention.index import native_backend, reference, torch_backend, triton_backend

BACKENDS = tuple(module.BACKEND for module in (triton_backend, native_backend, torch_backend, reference))
