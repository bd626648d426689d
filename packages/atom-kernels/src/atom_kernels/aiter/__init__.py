"""AMD's AITER: what of it we call, what an installed one offers, and the adapters of the operators that run on it.

Nothing in this package imports AITER until an adapter binds a kernel.
"""
