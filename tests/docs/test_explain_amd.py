"""docs/amd/explain-*.txt is what `explain` prints for AMD GPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_explain_prints_for_amd_gpus_is_in_the_docs():
    spec = importlib.util.spec_from_file_location("explain_amd", ROOT / "tools" / "explain_amd.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    pages = generator.pages()
    assert {path.name for path in pages} == {path.name for path in generator.FOLDER.glob("explain-*.txt")}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `python tools/explain_amd.py`"
