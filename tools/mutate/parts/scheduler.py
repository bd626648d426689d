"""The scheduler, and the book-keeping of the KV cache."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_CORE = "atom-core/src/atom_core"
_TESTS = (
    "atom-core/tests/test_scheduler_numbers.py",
    "atom-core/tests/test_block_pool.py",
    "atom-core/tests/test_prefix_cache.py",
    "atom-core/tests/test_cache_groups.py",
    "atom-core/tests/test_scheduler.py",
    "atom-core/tests/test_scheduler_drafts.py",
    "atom-core/tests/test_scheduler_endings.py",
    "atom-core/tests/test_scheduler_model_drafts.py",
    "atom-core/tests/test_scheduler_preemption.py",
    "atom-core/tests/test_scheduler_waiting_aside.py",
    "atom-core/tests/test_scheduler_properties.py",
    "atom-core/tests/test_one_step_ahead.py",
    "atom-core/tests/test_step_ends.py",
    "atom-core/tests/test_snapshots.py",
    "atom-core/tests/test_states_in_slots.py",
    "atom-core/tests/test_not_finite.py",
    "atom-core/tests/test_fair_shares.py",
    "atom-core/tests/test_scheduler_stages.py",
    "atom-core/tests/test_deadlines.py",
)
_PAGE_TESTS = (*_TESTS, "atom-core/tests/test_cache_layouts.py", "atom-core/tests/test_ranks_agree.py")

_HEAP = "when the heap is made anew, and how often, changes its size and not what it says"
HARMLESS: Harmless = {
    ("vacant_runs.py: _insert", "len(self._by_length) > 4 * len(self._end_of) + 64", "*"): _HEAP,
    ("vacant_runs.py: _insert", "4 * len(self._end_of) + 64", "*"): _HEAP,
    ("vacant_runs.py: _insert", "4 * len(self._end_of)", "*"): _HEAP,
    ("vacant_runs.py: _insert", "4", "5"): _HEAP,
    ("vacant_runs.py: _insert", "64", "65"): _HEAP,
    ("suffix/index.py: catch_up", "len(tokens) > len(self._last)", "*"): "a table grows one token earlier",
    ("block_pool.py: _take_run", "0", "1"): "half of one spare block is none",
    ("trail.py: _judge", "self._draft.token_ids, came", "*"): "tokens are compared for being equal, either way round",
}

SCHEDULER = Part(
    name="scheduler",
    files={
        f"{_CORE}/scheduler/*.py": _TESTS,
        f"{_CORE}/kv_cache/*.py": _TESTS,
        f"{_CORE}/kv_events/*.py": ("atom-core/tests/test_kv_events.py",),
        f"{_CORE}/speculation/*.py": (
            "atom-core/tests/test_scheduler_numbers.py",
            "atom-core/tests/test_drafters.py",
            "atom-core/tests/test_drafts_pay.py",
            "atom-core/tests/test_scheduler_drafts.py",
            "atom-core/tests/test_scheduler_model_drafts.py",
            "atom-core/tests/test_following.py",
            "atom-core/tests/test_one_step_ahead.py",
            "atom-core/tests/test_engine_args.py",
        ),
        f"{_CORE}/speculation/suffix/*.py": (
            "atom-core/tests/test_suffix_drafter.py",
            "atom-core/tests/test_scheduler_drafts.py",
        ),
        "atom-kernels/src/atom_kernels/protocols/group_spec.py": _PAGE_TESTS,
        "atom-kernels/src/atom_kernels/protocols/pages.py": _PAGE_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
)
