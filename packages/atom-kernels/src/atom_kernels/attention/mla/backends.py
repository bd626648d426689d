"""What can run latent attention, in the order in which it is tried."""

from atom_kernels.aiter.attention import latent_backend
from atom_kernels.attention.mla import native_backend, reference, torch_backend, triton_backend

BACKENDS = tuple(
    module.BACKEND for module in (latent_backend, triton_backend, native_backend, torch_backend, reference)
)
