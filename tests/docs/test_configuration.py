"""docs/configuration.md is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "tools" / "config_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_up_to_date():
    generator = load_generator()
    assert generator.PAGE.read_text() == generator.render(), "run `python tools/config_docs.py`"


def test_every_setting_of_the_engine_is_on_the_page():
    from atom_core.config.options import options_of

    generator = load_generator()
    page = generator.render()
    for option in options_of(generator.EngineArgs):
        assert f"`{option.flag}`" in page
        assert option.help in page


def test_what_is_refused_is_said_to_be():
    rows = [line for line in load_generator().render().splitlines() if "Refused by this version" in line]
    assert any("--tensor-parallel-size" in row for row in rows)
    assert not any("--max-num-seqs" in row for row in rows)
