"""The emulator's package: found, imported and left as the real one would be."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from emulated_aiter import RELEASES, TREES, emulated_aiter, emulator_environment
from tests.aiter_emulator.semantics.binding import in_kernel
from tests.aiter_emulator.semantics.errors import SilentlyWrong


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("arch", "fp8"), [("gfx942", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn)])
def test_it_has_a_version_and_the_fp8_type_of_the_architecture(release: str, arch: str, fp8: torch.dtype):
    with emulated_aiter(release, arch):
        package = importlib.import_module("aiter")
        chip = importlib.import_module("aiter.jit.utils.chip_info")
        assert importlib.metadata.version("amd-aiter") == RELEASES[release]
        assert (chip.get_gfx(), chip.get_cu_num()) == (arch, {"gfx942": 304, "gfx950": 256}[arch])
        assert package.dtypes.fp8 == package.dtypes.d_dtypes["fp8"] == package.dtypes.get_dtype_fp8() == fp8


def test_nothing_of_it_stays():
    path, before = list(sys.path), (importlib.util.find_spec("aiter"), installed_version())
    with emulated_aiter("git"):
        importlib.import_module("aiter.ops.triton.fused_kv_cache")
    assert "aiter" not in sys.modules
    assert (importlib.util.find_spec("aiter"), installed_version()) == before
    assert sys.path == path


def installed_version() -> str | None:
    try:
        return importlib.metadata.version("amd-aiter")
    except importlib.metadata.PackageNotFoundError:
        return None


def test_releases_nest_and_each_function_keeps_its_own():
    x, weight = torch.ones(2, 3, 8), torch.ones(8)
    with emulated_aiter("git"):
        outer = importlib.import_module("aiter")
        with emulated_aiter("pypi"):
            inner = importlib.import_module("aiter")
            assert inner is not outer
            assert outer.rms_norm(x, weight, 1e-6).shape == x.shape
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("aiter.ops.triton.fusions")
        assert importlib.import_module("aiter") is outer
        assert importlib.import_module("aiter.ops.triton.fused_kv_cache").__name__.endswith("fusions.fused_kv_cache")


def test_a_process_of_its_own_finds_it():
    code = "import aiter, torch; print(aiter.silu_and_mul.__name__, aiter.dtypes.fp8)"
    command, environment = [sys.executable, "-c", code], emulator_environment("pypi", "gfx950")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["silu_and_mul", "torch.float8_e4m3fn"]


def test_without_a_named_architecture_it_fails_as_on_a_machine_without_rocm(monkeypatch: pytest.MonkeyPatch):
    with emulated_aiter("git"):
        monkeypatch.delenv("GPU_ARCHS")
        with pytest.raises(RuntimeError, match="rocminfo"):
            importlib.import_module("aiter")


def test_enums_are_no_integers(aiter: ModuleType):
    assert aiter.ActivationType.Silu.value == 0
    assert aiter.ActivationType.Silu != 0
    assert aiter.QuantType(2) == aiter.QuantType.per_Token
    assert aiter.QuantType.No != aiter.ActivationType.Silu
    assert {aiter.QuantType.per_1x32: "found"}[aiter.QuantType(3)] == "found"
    assert (aiter.ActivationType(-1).name, aiter.ActivationType(99).name) == ("No", "???")
    assert int(aiter.ActivationType.Swiglu) == 2


def test_later_members_and_functions_are_absent_in_the_release_on_pypi(git_aiter: ModuleType):
    assert git_aiter.ActivationType.Situv2.value == 3
    assert git_aiter.MlaVersion.V40.value == 1
    with emulated_aiter("pypi"):
        old = importlib.import_module("aiter")
        assert not hasattr(old.ActivationType, "Situv2")
        later = {"MlaVersion", "swiglu_and_mul", "fused_qk_rmsnorm", "fused_qk_norm_rope_cache_quant_shuffle"}
        assert [name for name in [*later, "fused_qk_rope_concat_and_cache_mla"] if hasattr(old, name)] == []


def test_bound_functions_show_no_signature_and_check_types(aiter: ModuleType):
    assert list(inspect.signature(aiter.rms_norm).parameters) == ["args", "kwargs"]
    with pytest.raises(TypeError, match="epsilon needs to be"):
        aiter.rms_norm(torch.ones(2, 8), torch.ones(8), "1e-6")
    with pytest.raises(TypeError, match="use_model_sensitive_rmsnorm needs to be"):
        aiter.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-6, 0.5)


def test_flat_triton_names_have_no_file_in_git(git_aiter: ModuleType):
    flat = importlib.import_module("aiter.ops.triton.fused_kv_cache")
    nested = importlib.import_module("aiter.ops.triton.fusions.fused_kv_cache")
    assert flat.fused_qk_rope_reshape_and_cache is nested.fused_qk_rope_reshape_and_cache
    assert flat.__file__.endswith("fusions/fused_kv_cache.py")


def test_nested_triton_names_are_absent_in_the_release_on_pypi(pypi_aiter: ModuleType):
    assert importlib.import_module("aiter.ops.triton.fused_kv_cache").__file__.endswith("triton/fused_kv_cache.py")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("aiter.ops.triton.fusions.fused_kv_cache")


class Watched(TorchDispatchMode):
    """Notes for each operation whether an emulated function runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.inside.append(in_kernel())
        return func(*args, **(kwargs or {}))


def test_what_a_function_does_inside_can_be_told_from_what_its_caller_does(aiter: ModuleType):
    x, out = torch.randn(3, 8), torch.empty(3, 4)
    with Watched() as watched:
        doubled = (x * 2).bfloat16()
        aiter.silu_and_mul(out.bfloat16(), doubled)
    before = watched.inside.index(True)
    assert watched.inside[:before] == [False] * 3
    assert all(watched.inside[before:])
    assert not in_kernel()


def test_it_knows_nothing_of_the_adapters_that_it_judges():
    strangers = []
    for file in TREES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            strangers += [f"{file.name}: {name}" for name in names if not _may_be_imported(name)]
    assert not strangers


def _may_be_imported(name: str) -> bool:
    top = name.partition(".")[0]
    return top in {*sys.stdlib_module_names, "aiter", "numpy", "torch"} or name.startswith("tests.aiter_emulator")


def test_errors_of_the_two_kinds_are_not_mistaken_for_each_other():
    assert not issubclass(SilentlyWrong, RuntimeError)
