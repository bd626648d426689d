"""The forward context is there for one step, and gone after it, however it ends."""

from __future__ import annotations

import pytest

from atom_models.forward_context import ForwardContext, get_forward_context, set_forward_context


def test_outside_a_step_there_is_none():
    with pytest.raises((LookupError, RuntimeError)):
        get_forward_context()


def test_after_a_step_it_is_what_it_was_before():
    outer, inner = ForwardContext({}, {"which": 1}), ForwardContext({}, {"which": 2})
    with set_forward_context(outer):
        with set_forward_context(inner):
            assert get_forward_context() is inner
        assert get_forward_context() is outer
    test_outside_a_step_there_is_none()


def test_after_a_step_that_failed_too():
    with pytest.raises(ValueError, match="failed"), set_forward_context(ForwardContext({}, {})):
        raise ValueError("failed")
    test_outside_a_step_there_is_none()
