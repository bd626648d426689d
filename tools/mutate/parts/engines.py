"""Several engines behind one front, the ranks of each, and the models that draft."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_CORE = "atom-core/src/atom_core"
_REPLICA_TESTS = (
    "atom-core/tests/test_routing.py",
    "atom-core/tests/test_health_of_engines.py",
    "atom-core/tests/test_data_parallel_settings.py",
    "atom-core/tests/test_data_parallel_offline.py",
    "atom-core/tests/test_data_parallel.py",
    "atom-core/tests/test_data_parallel_faults.py",
    "atom-core/tests/test_engine_control.py",
    "atom-core/tests/test_sleep.py",
)
_DRAFTING_TESTS = (
    "atom-models/tests/test_eagle_heads.py",
    "atom-models/tests/test_refused_eagle_heads.py",
    "atom-models/tests/test_prediction_layers.py",
    "atom-models/tests/test_prediction_layers_of_hybrids.py",
    "atom-core/tests/test_drafting_checkpoints.py",
    "atom-core/tests/test_whole_draft_models.py",
)
_HOW_LONG = "how long is waited for what does not come: no test waits for it"
HARMLESS: Harmless = {
    ("replicas/replicas.py", "600.0", "*"): _HOW_LONG,
    ("drafting/eagle3.py: __init__", "0", "1"): "heads have no windows, which are all that a layer's number decides",
    ("replicas/replicated_core.py", "600.0", "*"): _HOW_LONG,
    ("replicas/replicated_core.py", "0.5", "*"): "how long a step that brings nothing takes: callers come again",
}

ENGINES = Part(
    name="engines",
    files={
        f"{_CORE}/engine/replicas/*.py": _REPLICA_TESTS,
        f"{_CORE}/executor/*.py": (
            "atom-core/tests/test_ranks_agree.py",
            "atom-core/tests/test_data_parallel_settings.py",
            "atom-core/tests/test_pipeline_parallel_settings.py",
        ),
        f"{_CORE}/executor/processes/*.py": ("atom-core/tests/test_rank_processes.py",),
        "atom-models/src/atom_models/drafting/*.py": _DRAFTING_TESTS,
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
    # They run in a process of their own, where no mistake can be put in: the tests' process alone has it.
    left_out=("__init__.py", "rank_loop.py", "rank_process.py", "worker.py"),
)
