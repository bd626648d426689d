"""What a field or an argument is where nobody gave it: every default of problems, layouts and platforms."""

from __future__ import annotations

from typing import Any

import pytest

from stated_defaults import Defaults, stated_defaults

# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "activation.contract.GatedActivationProblem": {"alpha": 1.702, "limit": 7.0},
    "activation.contract.SigmoidGateProblem": {"one_gate": False},
    "activation.contract.gated": {"alpha": 1.702, "limit": 7.0},
    "activation.contract.gated_activation": {"alpha": 1.702, "limit": 7.0},
    "aiter.attention.flash.bind_flash": {"has_sinks": False},
    "aiter.functions.AiterFunction": {"keywords": False},
    "aiter.report.describe_api": {"place": ""},
    "attention.cases.make_problem": {"dtype": "float32"},
    "attention.cases.make_step": {"scattered": False, "interleaved": False, "norms": False, "seed": 0},
    "attention.hopper.configs.HopperConfig": {
        "block_n": 128,
        "stages": 2,
        "part_registers": 232,
        "load_registers": 40,
        "least_tokens": 1024,
        "least_average": 128,
    },
    "attention.index.cases.make_problem": {"dtype": "float32"},
    "attention.index.cases.make_step": {"scattered": False, "prologue": True, "interleaved": False, "seed": 0},
    "attention.index.problem.IndexPrologue": {"interleaved": False},
    "attention.index.triton_rows.rows_of_requests": {"limit": 1073741824},
    "attention.mla.cases.make_problem": {"dtype": "float32"},
    "attention.mla.cases.make_step": {"scattered": False, "prologue": True, "interleaved": True, "seed": 0},
    "attention.mla.native_backend.NativeMla.__init__": {"expanded_elements": 8388608},
    "attention.mla.native_kernels.Prologue": {"norm_eps": 1e-06, "interleaved": 0},
    "attention.mla.native_steps.plan_step": {"expanded_elements": 8388608},
    "attention.mla.problem.MlaPrologue": {"interleaved": True, "norm_eps": 1e-06},
    "attention.mla.tuning.LatentSubject.__init__": {"context": 1024, "device": "cuda"},
    "attention.problem.AttentionProblem": {"has_sinks": False, "batch_invariant": False},
    "attention.problem.AttentionPrologue": {"interleaved": False},
    "attention.sparse.cases.make_problem": {"dtype": "float32"},
    "attention.sparse.cases.make_step": {"seed": 0},
    "attention.sparse.cases.choose_at_random": {"seed": 0},
    "attention.triton.configs.DecodeConfig": {"prefetch": 1, "parts": 1},
    "attention.triton.launch.PagedKernels": {"rope_dim": 0, "latent": False, "window": 0, "batch_invariant": False},
    "attention.tuning.AttentionSubject.__init__": {"context": 1024, "prompt": 4096, "device": "cuda"},
    "cli.bench.run": {"seconds": 0.2},
    "cli.check._Tally": {"passed": 0, "failed": 0, "worst": 0.0},
    "cli.check.run": {"verbose": False},
    "cli.explain.run": {"is_simulated": False},
    "cli.explain.describe_platform": {"is_simulated": False},
    "delta.contract.GatedDeltaProblem": {"channel_gates": False},
    "delta.mixer.DeltaNetProblem": {"channel_gates": False, "num_drafts": 0},
    "formats.float4.Mxfp4": {"name": "mxfp4"},
    "formats.float4.Nvfp4": {"divides": False, "name": "nvfp4"},
    "formats.float8.Float8": {"rows": 1},
    "formats.weight_format.Part": {"rows": 1, "columns": 1, "is_scale": True},
    "linear.contract.LinearProblem": {"bias": False},
    "linear.contract.FusedLinearProblem": {"gated": False},
    "linear.contract.fused_linear": {"eps": 0.0, "norm_offset": 0.0, "gated": False},
    "linear.triton.rounded_rows.rounded_rows": {"eps": 0.0, "norm_offset": 0.0, "multiple": 1},
    "linear.triton.skinny_configs.SkinnyConfig": {
        "split_k": 1,
        "num_warps": 4,
        "num_stages": 4,
        "prefetch": 1,
        "norm_apart": False,
        "rounds": False,
        "makes_weights": False,
    },
    "linear.triton.skinny_linear.SkinnyLinear.__init__": {"num_rows": 1},
    "linear.triton.skinny_linear.SkinnyLinear.__call__": {"eps": 0.0, "norm_offset": 0.0},
    "mixers.backend.MixerBackend": {"is_fallback": False},
    "mixers.cases.make_geometry": {"scattered": False, "seed": 0},
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
    "moe.triton_experts_backend.TritonExperts.__init__": {"few_pairs": 256},
    "native.library.native_unavailable": {"name": "probe"},
    "norm.contract.RMSNormProblem": {"eps": 1e-06, "weight_offset": 0.0},
    "norm.contract.GatedRMSNormProblem": {"eps": 1e-06},
    "norm.contract.LayerNormProblem": {"eps": 1e-05, "bias": True, "weight_offset": 0.0},
    "norm.contract.rms_norm": {"weight_offset": 0.0},
    "norm.contract.add_rms_norm": {"weight_offset": 0.0},
    "norm.contract.layer_norm": {"weight_offset": 0.0},
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
    "platform.platform.Platform.rocm": {"release": "git", "device": "cuda"},
    "protocols.cache_format.CacheFormat": {"scales": "none"},
    "protocols.collectives.Collectives.all_gather": {"dim": -1},
    "protocols.collectives.SingleRank.all_gather": {"dim": -1},
    "protocols.geometry.BatchGeometry": {"max_decode_len": 1, "prompts_are_new": False},
    "protocols.kv_cache.CacheLayout.allocate": {"device": "cpu"},
    "protocols.slots.Slots": {"slots_each": 1, "hand_over": 64},
    "rotary.contract.RotaryProblem": {"interleaved": False, "mrope_interleaved": False},
    "rotary.contract.apply_rotary": {"interleaved": False, "mrope_interleaved": False},
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
    "tuned.graph_timing.num_copies": {"most": 64},
    "tuned.graph_timing.graph_seconds": {"least_calls": 24},
    "tuned.store.save_rows": {"arch": "", "tuned_from": 1},
    "tuned.tuner.tune": {"num_threads": 16},
}


@pytest.fixture(scope="module")
def found() -> Defaults:
    """Those of all modules that can be imported here."""
    return stated_defaults("atom_kernels")


def test_every_default_is_listed(found: Defaults):
    new = {name: own for name, own in found.items() if name not in DEFAULTS}
    assert new == {}, "write these into DEFAULTS"


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_nobody_gave_has_its_default(name: str, found: Defaults):
    assert found.get(name, DEFAULTS[name]) == DEFAULTS[name]
