"""Settings: flags, keywords, their names in ROCm/ATOM, what is chosen where they are open, and the machine."""

from __future__ import annotations

from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts.part import Harmless, Part

_CORE = "atom-core/src/atom_core"
_SETTINGS_TESTS = (
    "atom-core/tests/test_numbers_of_settings.py",
    "atom-core/tests/test_engine_args.py",
    "atom-core/tests/test_data_parallel_settings.py",
    "atom-core/tests/test_pipeline_parallel_settings.py",
    "atom-core/tests/test_kv_events.py",
    "atom-core/tests/test_drafting_checkpoints.py",
    "atom-core/tests/test_whole_draft_models.py",
    "atom-compat/tests/test_compat_commands.py",
)
HARMLESS: Harmless = {
    ("resolve.py: default_capture_sizes", "512", "513"): "the largest is among the sizes anyway",
}

SETTINGS = Part(
    name="settings",
    files={
        f"{_CORE}/config/*.py": _SETTINGS_TESTS,
        "atom-compat/src/atom/**/*.py": ("atom-compat/tests/test_compat_commands.py",),
        "atom-kernels/src/atom_kernels/platform/*.py": ("atom-kernels/tests/test_platform.py",),
    },
    operators=GENERAL_OPERATORS,
    harmless=HARMLESS,
    # What it asks is a machine of each kind, and there is one.
    left_out=("__init__.py", "probing.py"),
)
