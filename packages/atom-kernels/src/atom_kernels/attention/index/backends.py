"""What can run a lightning index, in the order in which it is tried."""

from atom_kernels.attention.index import reference, torch_backend

BACKENDS = tuple(module.BACKEND for module in (torch_backend, reference))
