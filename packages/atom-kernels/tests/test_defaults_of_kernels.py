"""What a field of a problem or an argument of an operator is where nobody gave it."""

from __future__ import annotations

from typing import Any

from stated_defaults import stated_defaults

# What operators and formats are asked for; how kernels are launched is their own affair.
MODULES = (
    "*.contract",
    "*.problem",
    "delta.mixer",
    "formats.*",
    "rotary.tables",
    "mixers.backend",
    "mixers.plan",
    "platform.platform",
    "protocols.*",
)
# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "activation.contract.GatedActivationProblem": {"alpha": 1.702, "limit": 7.0},
    "activation.contract.SigmoidGateProblem": {"one_gate": False},
    "activation.contract.gated": {"alpha": 1.702, "limit": 7.0},
    "activation.contract.gated_activation": {"alpha": 1.702, "limit": 7.0},
    "attention.index.problem.IndexPrologue": {"interleaved": False},
    "attention.mla.problem.MlaPrologue": {"interleaved": True, "norm_eps": 1e-06},
    "attention.encoder.problem.EncoderAttentionProblem": {"causal": False},
    "attention.problem.AttentionProblem": {"has_sinks": False, "batch_invariant": False, "sees_ahead": False},
    "attention.problem.AttentionPrologue": {"interleaved": False},
    "delta.contract.GatedDeltaProblem": {"channel_gates": False},
    "delta.mixer.DeltaNetProblem": {"channel_gates": False, "num_drafts": 0},
    "formats.float4.Mxfp4": {"name": "mxfp4"},
    "formats.float4.Nvfp4": {"divides": False, "name": "nvfp4"},
    "formats.float8.Float8": {"rows": 1},
    "formats.row_rounding.RowRounding": {"by_column": False},
    "formats.weight_format.Part": {"rows": 1, "columns": 1, "is_scale": True},
    "linear.contract.LinearProblem": {"bias": False, "gated": False, "neighbors": False},
    "linear.contract.linear": {"eps": 0.0, "norm_offset": 0.0, "gated": False},
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
    "moe.contract.ExpertsProblem": {
        "bias": False,
        "alpha": 1.702,
        "limit": 7.0,
        "batch_invariant": False,
        "num_absent": 0,
    },
    "norm.contract.RMSNormProblem": {"eps": 1e-06, "weight_offset": 0.0},
    "norm.contract.GatedRMSNormProblem": {"eps": 1e-06},
    "norm.contract.LayerNormProblem": {"eps": 1e-05, "bias": True, "weight_offset": 0.0},
    "norm.contract.rms_norm": {"weight_offset": 0.0},
    "norm.contract.add_rms_norm": {"weight_offset": 0.0},
    "norm.contract.layer_norm": {"weight_offset": 0.0},
    "platform.platform.Platform": {
        "batch_invariant": False,
        "num_devices": 0,
        "num_processors": 0,
        "bytes_per_second": 0.0,
    },
    "platform.platform.Platform.rocm": {"release": "git", "device": "cuda"},
    "protocols.cache_format.CacheFormat": {"scales": "none"},
    "protocols.collectives.Collectives.all_gather": {"dim": -1},
    "protocols.collectives.PieceMemory": {"num_sent": 0},
    "protocols.collectives.SingleRank.all_gather": {"dim": -1},
    "protocols.geometry.BatchGeometry": {"max_decode_len": 1, "prompts_are_new": False},
    "protocols.kv_cache.CacheLayout.allocate": {"device": "cpu"},
    "protocols.slots.Slots": {"slots_each": 1, "hand_over": 64},
    "reduce.contract.all_reduce_add_rms_norm": {"weight_offset": 0.0},
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
}


def test_what_nobody_gave_has_its_default():
    assert stated_defaults("atom_kernels", MODULES) == DEFAULTS
