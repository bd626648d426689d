"""`snapshot_places`: behind which tokens of a prompt the states of layers that keep one are kept."""

from __future__ import annotations

# Tokens from one state that is kept of a prompt to the next; further on in long prompts it is a tenth of the way.
_PERIOD = 192


def snapshot_places(num_tokens: int, grid: int) -> list[int]:
    """Numbers of tokens, up to `num_tokens`, behind which the states of every prompt are kept; multiples of `grid`.

    All of a shared prefix is found but 191 tokens, or a tenth if that is more, or `grid` tokens less one if that is
    most of all. With a grid of 64 a prompt of 2,000 tokens has 10 places, and one of 32,000 has 38.
    """
    places: list[int] = []
    place = 0
    while True:
        place += max(_PERIOD // grid, place // 9 // grid, 1) * grid
        if place > num_tokens:
            return places
        places.append(place)
