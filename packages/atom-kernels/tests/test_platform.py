"""Platform detection decides from facts, so every machine can be described here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atom_kernels.aiter.api import known_api
from atom_kernels.platform import Facts, Platform, detect_platform, platform_from_facts, use_platform

ROCM = {
    "torch_build": "rocm",
    "num_devices": 8,
    "device_name": "AMD Instinct MI300X",
    "device_arch": "gfx942",
    "triton_version": "3.6.0",
}


def make_platform(**facts):
    return platform_from_facts(Facts(**facts))


def test_aiter_comes_first_on_a_supported_rocm_machine_where_it_imports():
    platform = make_platform(**ROCM, aiter_version="0.1.20", aiter=known_api("git"))
    assert platform.backends == ("aiter", "triton", "torch")
    assert (platform.vendor, platform.device, platform.arch) == ("amd", "cuda", "gfx942")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"aiter_version": None}, "amd-aiter is not installed"),
        (
            {"aiter_version": "0.1.20", "aiter": None, "aiter_error": "OSError: libhipblaslt.so"},
            "OSError: libhipblaslt",
        ),
        ({"device_arch": "gfx1100"}, "this is gfx1100"),
        ({"num_devices": 0}, "no AMD GPU"),
        ({"torch_build": "cuda"}, "cuda build"),
        ({"torch_build": "cpu"}, "cpu build"),
    ],
)
def test_aiter_is_passed_over_with_a_reason_where_any_condition_fails(facts, words):
    platform = make_platform(**{**ROCM, "aiter_version": "0.1.20", "aiter": known_api("git"), **facts})
    assert "aiter" not in platform.backends
    assert platform.aiter is None
    assert words in (platform.why_not("aiter") or "")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("release", ["git", "pypi"])
def test_an_amd_machine_can_be_simulated(arch, release):
    platform = Platform.rocm(arch, release=release)
    assert (platform.vendor, platform.device, platform.arch) == ("amd", "cuda", arch)
    assert platform.backends == ("aiter", "triton", "torch")
    assert platform.aiter is known_api(release)
    assert platform.float8 == {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}[arch]
    assert hash(platform) == hash(Platform.rocm(arch, release=release))


def test_a_simulated_amd_machine_on_the_host_has_no_triton():
    platform = Platform.rocm("gfx942", device="cpu")
    assert (platform.vendor, platform.device, platform.backends) == ("amd", "cpu", ("aiter", "torch"))
    assert "host" in (platform.why_not("triton") or "")


@pytest.mark.parametrize(("arch", "release"), [("gfx1100", "git"), ("gfx942", "nightly")])
def test_a_machine_that_aiter_does_not_have_cannot_be_simulated(arch, release):
    with pytest.raises(ValueError, match=r"gfx1100|nightly"):
        Platform.rocm(arch, release=release)


def test_another_platform_stands_in_for_this_machine_for_a_while():
    here = detect_platform()
    with use_platform(Platform.rocm("gfx942")) as alone:
        assert detect_platform() is alone
    with use_platform(Platform.rocm("gfx942")), use_platform(Platform.rocm("gfx950")) as inner:
        assert detect_platform() is inner
    assert detect_platform() is here


def test_an_nvidia_machine_has_triton_and_torch():
    platform = make_platform(torch_build="cuda", num_devices=1, device_arch="sm_90", triton_version="3.6.0")
    assert platform.backends == ("triton", "torch")
    assert platform.vendor == "nvidia"
    assert platform.preferred_dtype == "bfloat16"


def test_a_card_that_tells_its_processors_and_its_memory_is_believed_and_others_are_known_by_their_architecture():
    known = make_platform(torch_build="cuda", num_devices=1, device_arch="sm_90")
    assert (known.num_processors, known.bytes_per_second) == (132, 3.35e12)
    told = make_platform(
        torch_build="cuda", num_devices=1, device_arch="sm_90", num_processors=114, bytes_per_second=4.8e12
    )
    assert (told.num_processors, told.bytes_per_second) == (114, 4.8e12)
    assert make_platform(torch_build="cuda", num_devices=1, device_arch="sm_77").num_processors > 0
    assert make_platform().num_processors == 0


# The makers' data sheets: processors of a card, bytes a second of its memory, bytes that one program may have.
CARDS = {
    "gfx942": (304, 5.3e12, 64 * 1024),
    "gfx950": (256, 8.0e12, 160 * 1024),
    "sm_80": (108, 2.0e12, 163 * 1024),
    "sm_90": (132, 3.35e12, 227 * 1024),
    "sm_100": (148, 8.0e12, 227 * 1024),
    "sm_77": (100, 1.0e12, 64 * 1024),
}


@pytest.mark.parametrize("arch", CARDS)
def test_a_card_that_is_only_thought_of_has_the_size_of_its_makers_data_sheet(arch):
    build = "rocm" if arch.startswith("gfx") else "cuda"
    platform = make_platform(torch_build=build, num_devices=2, device_arch=arch, device_name="a card")
    assert (platform.num_processors, platform.bytes_per_second, platform.local_memory) == CARDS[arch]
    assert (platform.name, platform.arch, platform.num_devices) == ("a card", arch, 2)


def test_a_cpu_has_no_card_of_any_size():
    platform = make_platform(cpu_name="Some CPU", machine="aarch64", num_cores=7, cpu_features=frozenset({"sve"}))
    assert (platform.num_devices, platform.num_processors, platform.bytes_per_second) == (0, 0, 0.0)
    assert platform.local_memory == sys.maxsize
    assert (platform.name, platform.arch, platform.num_cores) == ("Some CPU", "aarch64", 7)
    assert platform.cpu_features == {"sve"}


def test_facts_that_nobody_gave_are_those_of_a_small_cpu_with_onednn():
    facts = Facts()
    assert not facts.on_gpu
    assert (facts.num_devices, facts.num_processors, facts.bytes_per_second, facts.num_cores) == (0, 0, 0.0, 1)
    assert (facts.torch_build, facts.machine, facts.cpu_name) == ("cpu", "x86_64", "unknown CPU")
    assert (facts.mkldnn, facts.triton_interpret, facts.device_name, facts.device_arch) == (True, False, "", "")
    platform = platform_from_facts(facts)
    assert (platform.backends, platform.batch_invariant) == (("native", "onednn", "torch"), False)
    assert platform.why_not("triton") == "triton is not installed"
    assert make_platform(mkldnn=False).why_not("onednn") == "torch was built without oneDNN, or it is off"


@pytest.mark.parametrize(("arch", "dtype"), [("sm_75", "float32"), ("sm_79", "float32"), ("sm_80", "bfloat16")])
def test_an_nvidia_card_from_before_ampere_prefers_float32(arch, dtype):
    platform = make_platform(torch_build="cuda", num_devices=1, device_arch=arch)
    assert platform.preferred_dtype == dtype
    assert arch in platform.bf16_reason
    assert ("emulates" in platform.bf16_reason) == (dtype == "float32")


def test_amds_cards_multiply_bfloat16():
    assert make_platform(**ROCM).fast_bf16


def test_an_nvidia_card_can_be_thought_of():
    platform = Platform.nvidia("sm_90")
    assert (platform.vendor, platform.device, platform.num_devices, platform.name) == (
        "nvidia",
        "cuda",
        1,
        "NVIDIA sm_90",
    )
    assert platform.float8 == "float8_e4m3fn"
    assert platform.why_not("native") == "native kernels are for CPUs"
    assert platform.why_not("onednn") == "oneDNN is for CPUs"


def test_an_aiter_that_is_installed_where_it_cannot_run_is_named():
    platform = make_platform(**{**ROCM, "device_arch": "gfx1100"}, aiter_version="0.1.20")
    assert (platform.why_not("aiter") or "").endswith("this is gfx1100 (amd-aiter 0.1.20 is installed)")
    assert "installed" not in (make_platform(**{**ROCM, "device_arch": "gfx1100"}).why_not("aiter") or "")


def test_triton_needs_a_gpu_or_its_interpreter():
    assert "no GPU" in (make_platform(triton_version="3.6.0").why_not("triton") or "")
    assert make_platform(triton_version="3.6.0", triton_interpret=True).why_not("triton") is None


def test_a_cuda_build_of_torch_without_a_gpu_is_a_cpu_platform():
    platform = make_platform(torch_build="cuda", cpu_name="Some CPU")
    assert (platform.vendor, platform.device, platform.name) == ("cpu", "cpu", "Some CPU")


def test_a_machine_without_a_compiler_still_has_onednn_and_torch():
    platform = make_platform(native_error="no C compiler")
    assert platform.backends == ("onednn", "torch")
    assert platform.why_not("native") == "no C compiler"


def test_native_kernels_are_for_cpus_only():
    platform = make_platform(torch_build="cuda", num_devices=1, device_arch="sm_90")
    assert "native" not in platform.backends
    assert "onednn" not in platform.backends


@pytest.mark.parametrize(
    ("features", "slowdown", "dtype", "words"),
    [
        ({"avx2"}, None, "float32", "no bfloat16 instructions"),
        ({"avx512_bf16"}, 0.3, "bfloat16", "0.30x"),
        ({"amx_bf16", "avx512_bf16"}, 0.2, "bfloat16", "amx_bf16"),
        ({"avx512_bf16"}, 9.0, "float32", "9.00x"),
        ({"avx512_bf16"}, 1.99, "bfloat16", "1.99x"),
        ({"avx512_bf16"}, 2.0, "float32", "2.00x"),
        ({"avx512_bf16"}, None, "bfloat16", "the CPU has avx512_bf16"),
        ({"bf16"}, None, "bfloat16", "the CPU has bf16"),
        ({"arm_bf16"}, None, "bfloat16", "the CPU has arm_bf16"),
        ({"sve_bf16"}, None, "bfloat16", "the CPU has sve_bf16"),
    ],
)
def test_bfloat16_is_chosen_by_cpu_flags_and_a_measurement(features, slowdown, dtype, words):
    platform = make_platform(cpu_features=frozenset(features), bf16_slowdown=slowdown)
    assert platform.preferred_dtype == dtype
    assert words in platform.bf16_reason


def test_bfloat16_is_not_fast_without_onednn():
    platform = make_platform(cpu_features=frozenset({"avx512_bf16"}), mkldnn=False)
    assert not platform.fast_bf16
    assert "oneDNN" in platform.bf16_reason


def test_this_machine_is_probed_once():
    platform = detect_platform()
    assert platform is detect_platform()
    assert platform.backends[-1] == "torch"
    assert platform.num_cores >= 1
    assert platform.device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_probing_leaves_no_computing_threads_behind():
    """A second OpenMP pool would slow down every operator of the thread that serves."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("threads are counted in /proc")
    code = (
        "import os, time, torch\n"
        "from atom_kernels.formats import Integers\n"
        "from atom_kernels.linear import LINEAR, LinearProblem\n"
        "from atom_kernels.select import select\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "select(LINEAR, LinearProblem(64, 64, torch.bfloat16))\n"
        "select(LINEAR, LinearProblem(64, 64, torch.bfloat16, weight_format=Integers(8)))\n"
        "deadline = time.monotonic() + 20\n"  # helpers end a moment after the thread that they helped
        "while (left := len(os.listdir('/proc/self/task')) - before) and time.monotonic() < deadline:\n"
        "    time.sleep(0.05)\n"
        "print(left)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
