"""AMD's AITER: the functions that we call, what an installed release offers, and the adapters of our operators.

Nothing in this package imports AITER until an adapter binds a kernel.
"""
