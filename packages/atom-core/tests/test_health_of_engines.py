"""Several engines count as healthy while one of them is."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from atom_core import EngineDeadError
from atom_core.engine.replicas.replicas import Replicas


def engines(*causes: str | None) -> Replicas:
    """One engine for each cause of death, None for one that lives; without processes."""

    def checked(cause: str | None) -> None:
        if cause is not None:
            raise EngineDeadError(cause)

    replicas = Replicas.__new__(Replicas)
    replicas._replicas = [
        SimpleNamespace(name=f"engine {rank}", process=SimpleNamespace(check_health=partial(checked, cause)))
        for rank, cause in enumerate(causes)
    ]
    return replicas


@pytest.mark.parametrize("causes", [(None,), (None, None), ("it hangs", None), (None, "it hangs")])
def test_engines_are_healthy_while_one_is(causes: tuple[str | None, ...]):
    engines(*causes).check_health()


@pytest.mark.parametrize(
    ("causes", "says"),
    [
        (("it hangs",), "it hangs"),
        (("it hangs", "it fell"), "none of 2 engines works: engine 0: it hangs; engine 1: it fell"),
    ],
)
def test_where_none_lives_all_causes_are_told(causes: tuple[str, ...], says: str):
    with pytest.raises(EngineDeadError) as caught:
        engines(*causes).check_health()
    assert str(caught.value) == says
