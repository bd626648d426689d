"""What a field is where nobody gave it: every default of problems, layouts and platforms."""

from __future__ import annotations

from typing import Any

import pytest

from field_defaults import Defaults, field_defaults

# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "activation.contract.GatedActivationProblem": {"alpha": 1.702, "limit": 7.0},
    "activation.contract.SigmoidGateProblem": {"one_gate": False},
    "aiter.functions.AiterFunction": {"keywords": False},
    "attention.hopper.configs.HopperConfig": {
        "block_n": 128,
        "stages": 2,
        "part_registers": 232,
        "load_registers": 40,
        "least_tokens": 1024,
        "least_average": 128,
    },
    "attention.index.problem.IndexPrologue": {"interleaved": False},
    "attention.mla.native_kernels.Prologue": {"norm_eps": 1e-06, "interleaved": 0},
    "attention.mla.problem.MlaPrologue": {"interleaved": True, "norm_eps": 1e-06},
    "attention.problem.AttentionProblem": {"has_sinks": False, "batch_invariant": False},
    "attention.problem.AttentionPrologue": {"interleaved": False},
    "attention.triton.configs.DecodeConfig": {"prefetch": 1, "parts": 1},
    "attention.triton.launch.PagedKernels": {"rope_dim": 0, "latent": False, "window": 0, "batch_invariant": False},
    "cli.check._Tally": {"passed": 0, "failed": 0, "worst": 0.0},
    "delta.contract.GatedDeltaProblem": {"channel_gates": False},
    "delta.mixer.DeltaNetProblem": {"channel_gates": False, "num_drafts": 0},
    "formats.float4.Mxfp4": {"name": "mxfp4"},
    "formats.float4.Nvfp4": {"divides": False, "name": "nvfp4"},
    "formats.float8.Float8": {"rows": 1},
    "formats.weight_format.Part": {"rows": 1, "columns": 1, "is_scale": True},
    "linear.contract.LinearProblem": {"bias": False},
    "linear.contract.FusedLinearProblem": {"gated": False},
    "linear.triton.skinny_configs.SkinnyConfig": {
        "split_k": 1,
        "num_warps": 4,
        "num_stages": 4,
        "prefetch": 1,
        "norm_apart": False,
        "rounds": False,
        "makes_weights": False,
    },
    "mixers.backend.MixerBackend": {"is_fallback": False},
    "mixers.plan.MixerPlan": {"has_kernel": True},
    "moe.contract.RoutingProblem": {
        "scoring": "softmax",
        "renormalize": False,
        "correction_bias": False,
        "num_groups": 1,
        "top_groups": 1,
        "group_score": "max",
        "scaling_factor": 1.0,
    },
    "moe.contract.ExpertsProblem": {"bias": False, "alpha": 1.702, "limit": 7.0, "batch_invariant": False},
    "moe.triton_configs.TileConfig": {
        "block_m": 16,
        "block_n": 64,
        "block_k": 64,
        "group_m": 1,
        "swap": False,
        "num_warps": 4,
        "num_stages": 4,
        "rounds": False,
    },
    "norm.contract.RMSNormProblem": {"eps": 1e-06, "weight_offset": 0.0},
    "norm.contract.GatedRMSNormProblem": {"eps": 1e-06},
    "norm.contract.LayerNormProblem": {"eps": 1e-05, "bias": True, "weight_offset": 0.0},
    "operator.WeightSpec": {"optional": False},
    "operator.Work": {"flops": 0},
    "platform.facts.Facts": {
        "torch_build": "cpu",
        "num_devices": 0,
        "device_name": "",
        "device_arch": "",
        "num_processors": 0,
        "bytes_per_second": 0.0,
        "triton_interpret": False,
        "cpu_name": "unknown CPU",
        "machine": "x86_64",
        "num_cores": 1,
        "mkldnn": True,
    },
    "platform.platform.Platform": {
        "batch_invariant": False,
        "num_devices": 0,
        "num_processors": 0,
        "bytes_per_second": 0.0,
    },
    "protocols.cache_format.CacheFormat": {"scales": "none"},
    "protocols.geometry.BatchGeometry": {"max_decode_len": 1, "prompts_are_new": False},
    "protocols.slots.Slots": {"slots_each": 1, "hand_over": 64},
    "rotary.contract.RotaryProblem": {"interleaved": False, "mrope_interleaved": False},
    "rotary.tables.RopeConfig": {
        "rope_theta": 10000.0,
        "rope_type": "default",
        "partial_rotary_factor": 1.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
    },
}


@pytest.fixture(scope="module")
def found() -> Defaults:
    """Those of all modules that can be imported here."""
    return field_defaults("atom_kernels")


def test_every_default_is_listed(found: Defaults):
    assert found.keys() - DEFAULTS.keys() == set()


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_field_that_nobody_gave_has_its_default(name: str, found: Defaults):
    assert found.get(name, DEFAULTS[name]) == DEFAULTS[name]
