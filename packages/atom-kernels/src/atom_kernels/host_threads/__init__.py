"""Threads of the host that compute: how many there may be, and how long they spin while they wait for each other."""

from atom_kernels.host_threads.cores import usable_cores

__all__ = ["usable_cores"]
