"""What AITER's functions check, refuse and compute, on a CPU: written from AITER's contract, for tests only.

The trees beside this folder (`git/`, `pypi/`) have the module paths and signatures of two releases of AITER and call
into here. Every function refuses what the real one refuses (`RuntimeError`, `TypeError`, `AssertionError`), and raises
`SilentlyWrong` where the real one would go on and compute something else than its caller means.
"""
