"""vLLM is what `atom_vllm`, and the stand-in for it in our tests, take it for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.with_vllm.conftest import SECONDS, STOCK, vllm_environment

pytestmark = pytest.mark.slow


def test_the_installed_vllm_is_what_we_take_it_for(vllm_python: str) -> None:
    command = [vllm_python, str(Path(__file__).parent / "contract.py")]
    done = subprocess.run(command, env=vllm_environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    findings = json.loads(done.stdout.splitlines()[-1])
    assert {sentence: found for sentence, found in findings.items() if found} == {}


def doctor(vllm_python: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(vllm_python).parent / "atom-vllm"), "doctor", *arguments]
    return subprocess.run(
        command, env=vllm_environment() | environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_doctor_says_what_vllm_would_run(vllm_python: str, tiny) -> None:
    flags = ["--max-model-len", "256", "--skip-tokenizer-init", "--dtype", "float32"]
    done = doctor(vllm_python, str(tiny("llama-3.1")), *flags)
    assert done.returncode == 0, done.stderr[-4000:]
    said = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in done.stdout.splitlines() if line[:1].strip()}
    assert said["plugin"] == "active"
    assert said["platform"] == "atom_vllm.platform.AtomCpuPlatform over CpuPlatform"
    assert said["architecture"] == "LlamaForCausalLM"
    assert said["model"] == "atom_vllm.models.model_wrapper:ATOMForCausalLM"
    assert said["attention"] == "atom_vllm.mixers.attention.AtomAttentionBackend"
    assert ["max_model_len", "256"] in [line.split() for line in done.stdout.splitlines()]


def test_the_doctor_says_why_vllm_runs_its_own(vllm_python: str, tiny) -> None:
    flags = ["--max-model-len", "256", "--skip-tokenizer-init", "--enable-lora", "--attention-backend", "CPU_ATTN"]
    done = doctor(vllm_python, str(tiny("llama-3.1")), *flags)
    assert "vLLM's own, because LoRA adapters are asked for" in done.stdout, done.stderr[-4000:]
    assert "because CPU_ATTN was asked for" in done.stdout


def test_the_doctor_says_that_the_plugin_is_disabled(vllm_python: str) -> None:
    done = doctor(vllm_python, **STOCK)
    assert done.returncode == 1
    assert "inactive: ATOM_DISABLE_VLLM_PLUGIN is set" in done.stdout
