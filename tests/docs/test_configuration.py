"""docs/configuration.md is what the code says."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR"}


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


def test_every_variable_that_a_package_reads_is_on_the_page():
    page = load_generator().render()
    assert sorted(name for name in variables_in_settings() if f"`{name}`" not in page) == []


def test_the_known_variables_are_those_that_packages_read():
    from atom_kernels.known_variables import OF_NO_EFFECT, READ

    assert sorted(READ) == sorted(name for name in variables_in_settings() if name.startswith("ATOM_"))
    assert OF_NO_EFFECT.isdisjoint(READ)


def variables_in_settings() -> set[str]:
    """What the settings.py of all packages name in their code; docstrings left aside."""
    files = ROOT.glob("packages/*/src/*/settings.py")
    texts = [node.value for file in files for node in ast.walk(ast.parse(file.read_text())) if is_text(node)]
    return {text for text in texts if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", text) and text not in LEVELS}


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_the_variables_of_flags_that_stay_in_the_environment_are_those_that_packages_read_too():
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.options import options_of
    from atom_kernels.known_variables import READ
    from atom_server.options import ServerOptions
    from atom_server.settings import READ_WITHOUT_FLAGS

    names = {f"ATOM_{option.name.upper()}" for struct in (EngineArgs, ServerOptions) for option in options_of(struct)}
    assert names & READ == READ_WITHOUT_FLAGS
