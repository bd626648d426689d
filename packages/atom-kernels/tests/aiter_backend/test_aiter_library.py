"""An installed AITER is found, told from its namesake, read without being imported, and called in its own order."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.aiter.api import known_api
from atom_kernels.aiter.library import AiterCallError, library
from atom_kernels.aiter.sources import AiterUnusableError, installed_api, read_api
from atom_kernels.cli.main import main
from atom_kernels.platform import gather_facts, platform_from_facts
from emulated_aiter import emulated_aiter, emulator_environment

NORM = "def rmsnorm2d_fwd_with_add({}): return dict(locals())\n"
NEW = "out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False, use_model_sensitive_rmsnorm=0"
OLD = "out, input, residual_in, residual_out, weight, epsilon, use_model_sensitive_rmsnorm=0"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes a package and its distribution, first on the path and forgotten afterwards."""

    def write(files: dict[str, str], *, distribution: str | None = "amd_aiter-0.1.20", name: str = "amd-aiter"):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        if distribution:
            metadata = tmp_path / f"{distribution}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {distribution.split('-')[1]}\n")
        importlib.invalidate_caches()
        return tmp_path / "aiter"

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for module in [module for module in sys.modules if module.split(".")[0] == "aiter"]:
        del sys.modules[module]


def package(norm: str, init: str = "") -> dict[str, str]:
    return {
        "aiter/__init__.py": init,
        "aiter/ops/__init__.py": "",
        "aiter/ops/rmsnorm.py": NORM.format(norm),
    }


def test_the_release_is_told_by_its_parameters_and_not_by_its_version(install):
    folder = install(package(NEW))
    assert read_api(folder, "0.1.dev1+gabcdef").release == "git"
    assert [parameter.name for parameter in installed_api().parameters("rmsnorm2d_fwd_with_add") or ()][
        6
    ] == "gemma_norm"


def test_the_release_of_pypi_is_known_and_others_without_the_new_norm_are_too_old(install):
    folder = install(package(OLD))
    assert read_api(folder, "0.1.7.post2.dev18").release == "pypi"
    with pytest.raises(AiterUnusableError, match=r"0\.1\.9 is older than v0\.1\.17"):
        read_api(folder, "0.1.9")


def test_the_asyncio_project_of_the_same_name_is_not_taken_for_it(install):
    install({"aiter/__init__.py": "raise SystemExit"}, distribution="aiter-0.13", name="aiter")
    with pytest.raises(AiterUnusableError, match="amd-aiter is not installed"):
        installed_api()


def test_the_asyncio_project_may_even_lie_in_its_place(install):
    install({"aiter/__init__.py": "raise SystemExit"})
    with pytest.raises(AiterUnusableError, match="another project of that name"):
        installed_api()


def test_a_distribution_without_a_package_is_told(install, monkeypatch):
    install({})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AiterUnusableError, match="no package aiter"):
        installed_api()


@pytest.mark.parametrize("error", ["RuntimeError('ROCm version file not found')", "OSError('libamdhip64.so')"])
def test_whatever_its_import_raises_is_a_reason_in_one_line(install, error):
    install(package(NEW, init=f"raise {error}"))
    with pytest.raises(AiterUnusableError, match=rf"import aiter: {error.split('(')[0]}: [\w. ]+$"):
        library()


def test_sources_that_do_not_parse_are_a_reason(install):
    folder = install({**package(NEW), "aiter/ops/norm.py": "def ("})
    with pytest.raises(AiterUnusableError, match=r"norm\.py of amd-aiter cannot be read"):
        read_api(folder, "0.1.20")


def test_definitions_under_conditions_count_and_those_inside_of_classes_do_not(install):
    sources = {
        "aiter/ops/activation.py": "if True:\n    def silu_and_mul(out, input, *, limit=0.0): ...\n",
        "aiter/ops/topk.py": "class TopK:\n    def grouped_topk(self, gating_output): ...\n",
    }
    api = read_api(install({**package(NEW), **sources}), "0.1.20")
    assert api.parameters("silu_and_mul") == (("out", None, False), ("input", None, False), ("limit", "0.0", True))
    assert api.why_not("grouped_topk") == "amd-aiter 0.1.20 has no grouped_topk"
    with pytest.raises(KeyError, match="not in the table"):
        api.has("something_else")


@pytest.mark.parametrize(("norm", "version"), [(NEW, "0.1.20"), (OLD, "0.1.7.post2")])
def test_arguments_go_to_their_parameters_in_whatever_order_they_are_bound(install, norm, version):
    install(package(norm), distribution=f"amd_aiter-{version}")
    names = ("weight", "input", "residual_in", "out", "residual_out")
    call = library().bind("rmsnorm2d_fwd_with_add", *names, epsilon=1e-5, gemma_norm=False)
    expected = {**{name: name for name in names}, "epsilon": 1e-5, "use_model_sensitive_rmsnorm": 0}
    assert call(*names) == expected | ({"gemma_norm": False} if norm == NEW else {})


def test_a_parameter_that_a_release_lacks_must_leave_things_as_they_are(install):
    install(package(OLD), distribution="amd_aiter-0.1.7.post2")
    names = ("out", "input", "residual_in", "residual_out", "weight", "epsilon")
    with pytest.raises(AiterCallError, match="takes no gemma_norm"):
        library().bind("rmsnorm2d_fwd_with_add", *names, gemma_norm=True)


def test_a_call_that_the_table_does_not_know_is_refused(install):
    install(package(NEW))
    with pytest.raises(AiterCallError, match=r"does not say .* use_model_sensitive_rmsnorm"):
        library().bind("rmsnorm2d_fwd_with_add", use_model_sensitive_rmsnorm=1)
    with pytest.raises(AiterCallError, match="has no silu_and_mul"):
        library().bind("silu_and_mul", "out", "input")


def test_a_parameter_without_a_default_must_be_given(install):
    install(package(NEW))
    with pytest.raises(AiterCallError, match="needs input"):
        library().bind("rmsnorm2d_fwd_with_add", "out", "weight")
    with pytest.raises(AiterCallError, match="needs residual_in, residual_out, weight, epsilon"):
        library().bind("rmsnorm2d_fwd_with_add", "out", "input")


def test_arguments_after_a_default_that_is_no_literal_go_by_keyword_where_that_is_safe(install):
    names = ["hidden_states", "w1", "w2", "topk_weight", "topk_ids"]
    listed = ", ".join(
        (*names, "expert_mask=None, activation=Some.thing, quant_type=None, w1_scale=None, w2_scale=None")
    )
    source = f"class Some: thing = 'kept'\ndef fused_moe({listed}): return expert_mask, activation, quant_type\n"
    install({**package(NEW), "aiter/fused_moe.py": source})
    call = library().bind("fused_moe", "quant_type", *names, expert_mask="mask")
    assert call("none", *range(5)) == ("mask", "kept", "none")


def test_arguments_after_such_a_default_are_refused_where_only_positions_are_safe(install):
    source = "class Some: thing = 0\ndef silu_and_mul(out, limit=Some.thing, input=None): ...\n"
    install({**package(NEW), "aiter/ops/activation.py": source})
    with pytest.raises(AiterCallError, match="by position only"):
        library().bind("silu_and_mul", "out", "input")


@pytest.mark.parametrize("release", ["git", "pypi"])
def test_the_emulator_offers_what_the_shipped_table_says(release):
    with amd_machine("gfx942", release):
        offered, known = dict(installed_api().functions), dict(known_api(release).functions)
    assert set(offered) == set(known)
    for name, parameters in offered.items():
        # Defaults may be spelled in other ways.
        assert [(p.name, p.default is None) for p in parameters] == [(p.name, p.default is None) for p in known[name]]


def test_the_library_is_loaded_anew_when_another_aiter_takes_its_place():
    with amd_machine("gfx942", "git"):
        first = library()
        assert library() is first
    with amd_machine("gfx942", "pypi"):
        assert library().api.release == "pypi"


@pytest.fixture
def rocm(monkeypatch):
    """What torch says on an MI300X."""
    properties = SimpleNamespace(
        name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304
    )
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


@pytest.mark.parametrize("release", ["git", "pypi"])
def test_a_machine_with_rocm_imports_it_and_knows_what_it_offers(rocm, release):
    with emulated_aiter(release, "gfx942"):
        platform = platform_from_facts(gather_facts())
    assert (platform.device, platform.vendor, platform.arch) == ("cuda", "amd", "gfx942")
    assert platform.backends[0] == "aiter"
    assert platform.aiter is not None
    assert platform.aiter.release == release
    assert platform.aiter.has("swiglu_and_mul") == (release == "git")


def test_a_machine_with_rocm_goes_on_without_one_that_does_not_import(rocm, install):
    install(package(NEW, init="raise RuntimeError('Get GPU arch from rocminfo failed')"))
    platform = platform_from_facts(gather_facts())
    assert platform.aiter is None
    assert "aiter" not in platform.backends
    reason = platform.why_not("aiter") or ""
    assert reason.startswith("amd-aiter 0.1.20 is installed but cannot be used: import aiter: RuntimeError: Get GPU")


def test_nothing_of_it_is_imported_on_a_machine_without_rocm():
    code = (
        "import sys; from atom_kernels.cli.main import main; main(['explain', 'paged_attention']);"
        "print('imported', sorted(name for name in sys.modules if name.split('.')[0] == 'aiter'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=emulator_environment("git"), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported []"
    assert "(amd-aiter 0.1.20.post1 is installed)" in done.stdout
    assert "aiter      0.1.20.post1, sources from git, in " in done.stdout


def test_an_aiter_that_cannot_be_used_is_reported_with_its_reason(install, capsys):
    install(package(OLD), distribution="amd_aiter-0.1.9")
    assert main(["explain", "embedding"]) == 0
    assert "aiter      0.1.9 cannot be used: amd-aiter 0.1.9 is older than v0.1.17" in capsys.readouterr().out


def test_functions_that_it_lacks_are_reported(install, capsys):
    install(package(NEW))
    assert main(["explain", "embedding"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("           lacks "))
    lacks = line.removeprefix("           lacks ").split(", ")
    assert "silu_and_mul" in lacks
    assert "rmsnorm2d_fwd_with_add" not in lacks
