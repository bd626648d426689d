"""The words of each kind of server: what is asked of it, and what its answers say."""

from atom_server.bench.backends.backend import Ask, Backend
from atom_server.bench.backends.factory import BACKENDS, make_backend

__all__ = ["BACKENDS", "Ask", "Backend", "make_backend"]
