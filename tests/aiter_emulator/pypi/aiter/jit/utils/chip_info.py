"""The architecture and the number of compute units, asked once for each process."""

import functools

from tests.aiter_emulator.semantics import machine


@functools.lru_cache(maxsize=1)
def get_gfx():
    return machine.arch()


@functools.lru_cache(maxsize=1)
def get_cu_num():
    return machine.cu_num()
