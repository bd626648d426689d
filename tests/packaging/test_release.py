"""What a release publishes: wheels whose metadata is whole, by a workflow that names what is there."""

from __future__ import annotations

import importlib.util
import re
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from source_tree import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def load_checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheels", ROOT / "tools" / "check_wheels.py")
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    return checker


CHECKER = load_checker()
WHOLE = dict.fromkeys(CHECKER.REQUIRED, "x")


def write_wheel(folder: Path, name: str, *needs: str, body: str = "about", **fields: str | None) -> Path:
    path = folder / f"{name.replace('-', '_')}-1.0.0-py3-none-any.whl"
    about = WHOLE | {"Name": name, "Version": "1.0.0"} | fields
    lines = [f"{field}: {value}" for field, value in about.items() if value is not None]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.0.dist-info/METADATA", "\n".join([*lines, "", body]))
    return path


def test_wheels_that_fit_each_other_have_no_problem(tmp_path):
    wheels = [write_wheel(tmp_path, "atom-a", "torch>=2.8"), write_wheel(tmp_path, "atom-b", "atom-a==1.0.0")]
    assert list(CHECKER.problems(wheels, "1.0.0")) == []


@pytest.mark.parametrize(
    ("needs", "fields", "version", "reason"),
    [
        ((), {"Summary": None}, None, "has no Summary"),
        ((), {"body": " "}, None, "has no description"),
        ((), {}, "1.0.1", "is of version 1.0.0, and the release of 1.0.1"),
        (("atom-c==1.0.0",), {}, None, "needs atom-c, of which there is no wheel"),
        (("atom-a>=1.0",), {}, None, "needs atom-a>=1.0, which is not pinned to 1.0.0"),
        (('atom-a[x]==1.0.1; extra == "y"',), {}, None, "needs atom-a[x]==1.0.1, which is not pinned to 1.0.0"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, needs, fields, version, reason):
    wheels = [write_wheel(tmp_path, "atom-a"), write_wheel(tmp_path, "atom-b", *needs, **fields)]
    assert any(reason in problem for problem in CHECKER.problems(wheels, version))


@pytest.mark.slow
def test_our_wheels_may_be_released(our_wheels):
    folder = next(iter(our_wheels.values())).parent
    assert list(CHECKER.problems(sorted(folder.glob("*.whl")))) == []


def test_the_workflow_runs_what_is_there_in_the_versions_that_we_develop_with():
    commands = [
        step["run"] for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["release"]["steps"] if "run" in step
    ]
    tools = re.findall(r"python (tools/\w+\.py)", "\n".join(commands))
    assert tools == ["tools/build_wheels.py", "tools/check_wheels.py"]
    assert all((ROOT / tool).is_file() for tool in tools)
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]
    pinned = {*environments["default"]["dependencies"], *environments["site"]["dependencies"]}
    assert set(re.findall(r"[\w-]+==[\d.]+", "\n".join(commands))) <= pinned
