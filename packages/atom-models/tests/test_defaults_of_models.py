"""What a field or an argument is where nobody gave it: every default of configurations, layers and layouts."""

from __future__ import annotations

from typing import Any

import pytest

from stated_defaults import Defaults, stated_defaults

# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "accuracy.ReferenceModel.__init__": {"progress": True},
    "accuracy.ReferenceModel.measure": {"progress": True},
    "architectures.deepseek_v2.DeepseekV2Config": {
        "norm_topk_prob": False,
        "topk_method": "greedy",
        "rope_interleave": True,
    },
    "architectures.deepseek_v3.DeepseekV3Config": {"norm_topk_prob": True, "topk_method": "noaux_tc"},
    "architectures.deepseek_v32.DeepseekV32Config": {"indexer_rope_interleave": False},
    "architectures.fine_grained_moe.FineGrainedMoEConfig": {
        "n_shared_experts": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
    },
    "architectures.gemma3.Gemma3Config": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
        "use_bidirectional_attention": False,
    },
    "architectures.glm4_moe.Glm4MoeConfig": {"n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": False},
    "architectures.glm4_moe_lite.Glm4MoeLiteConfig": {"first_k_dense_replace": 1},
    "architectures.glm_moe_dsa.GlmMoeDsaConfig": {
        "first_k_dense_replace": 3,
        "indexer_rope_interleave": True,
        "index_topk_freq": 1,
        "index_skip_topk_offset": 2,
    },
    "architectures.gpt_oss.GptOssConfig": {
        "rms_norm_eps": 1e-05,
        "attention_bias": True,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    "architectures.kimi_linear.KimiLinearConfig": {
        "max_position_embeddings": 2048,
        "n_shared_experts": 0,
        "n_group": 1,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    },
    "architectures.llama.LlamaConfig": {
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "architectures.minimax_m2.MiniMaxM2Config": {"scoring_func": "sigmoid", "use_routing_bias": True},
    "architectures.mistral.MistralConfig": {"sliding_window": 4096},
    "architectures.mixtral.MixtralConfig": {"num_experts_per_tok": 2},
    "architectures.nemotron.NemotronConfig": {"hidden_act": "relu2", "rms_norm_eps": 1e-05},
    "architectures.qwen2.Qwen2Config": {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
    "architectures.qwen3.Qwen3Config": {"head_dim": 128},
    "architectures.qwen3_5.Qwen3_5MoeConfig": {"intermediate_size": 0},
    "architectures.qwen3_moe.Qwen3MoeConfig": {"norm_topk_prob": False, "decoder_sparse_step": 1},
    "architectures.qwen3_next.Qwen3NextConfig": {"norm_topk_prob": True},
    "architectures.qwen_hybrid.QwenHybridConfig": {
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
    },
    "architectures.registry.Architecture": {"published_as": "bfloat16", "num_undeclared": 0},
    "build_context.BuildContext": {"device": "cpu", "block_size": 16, "model_impl": "auto", "num_drafts": 0},
    "checkpoint.gguf_architectures.architecture.GGUFArchitecture": {"permutes_heads": False, "norm_offset": 0.0},
    "decoder.causal_lm.Decoder.__init__": {"prefix": "model"},
    "drafting.choice.choose_draft": {"model_impl": "auto"},
    "drafting.draft_model.DraftModel.forward": {"step": 0},
    "drafting.eagle.EagleHead.forward": {"step": 0},
    "drafting.eagle3.Eagle3Head.forward": {"step": 0},
    "drafting.eagle_config.EagleConfig": {
        "model_type": "llama",
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "logit_scale": 1.0,
    },
    "drafting.loading.load_draft_weights": {"progress": True},
    "drafting.mtp.PredictionLayers.forward": {"step": 0},
    "drafting.whole_model.WholeModel.forward": {"step": 0},
    "fallback.choice.choose_implementation": {"requested": "auto"},
    "hub.hugging_face.fetch": {"only_config": False},
    "layers.activation.SigmoidGate.__init__": {"one_gate": False},
    "layers.embedding.LMHead.__init__": {"prefix": "lm_head"},
    "layers.linear.Shard": {"num_pieces": 1},
    "layers.linear.Linear.__init__": {"bias": False, "split_input": False},
    "layers.linear.MergedColumnParallelLinear.__init__": {"bias": False},
    "layers.linear.ColumnParallelLinear.__init__": {"bias": False},
    "layers.linear.QKVParallelLinear.__init__": {"bias": False},
    "layers.linear.RowParallelLinear.__init__": {"bias": False},
    "layers.matrices.StoredMatrix": {"turned": False, "interleaved": False},
    "layers.matrices.MatrixStack.__init__": {"keeps_bias": True},
    "layers.mixers.attention.Attention.__init__": {"sinks": False},
    "layers.mixers.rotary.make_rotary": {"interleaved": False},
    "layers.mixture.moe_config.RoutingConfig": {
        "scoring": "softmax",
        "renormalize": False,
        "num_groups": 1,
        "top_groups": 1,
        "group_score": "max",
        "scaling_factor": 1.0,
        "linear": "gate",
        "linear_bias": False,
        "float32": False,
    },
    "layers.mixture.moe_config.SharedExpertsConfig": {"name": "shared_experts"},
    "layers.mixture.moe_config.MoEConfig": {
        "hidden_act": "silu",
        "expert_bias": False,
        "fused_transposed": False,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "name": "mlp",
    },
    "layers.norms.layer_norm.LayerNorm.__init__": {"bias": True, "weight_offset": 0.0},
    "layers.norms.norm.RMSNorm.__init__": {"weight_offset": 0.0},
    "layers.ungated_mlp.UngatedMLP.__init__": {"up": "up_proj", "down": "down_proj", "bias": False},
    "layers.weighted_layer.WeightedLayer.expect": {"slot": "weight", "num_pieces": 1},
    "loaded_model.load_model": {"kv_cache_dtype": "auto", "block_size": 16, "model_impl": "auto", "progress": True},
    "paged_run.SequenceStep": {"slot": 0},
    "paged_run.PagedRun.__init__": {"device": "cpu", "num_slots": 8},
    "quantization.layer_quantization.HeldFormat": {"without_kernel": False},
    "quantization.layer_quantization.LayerQuantization": {"rule": ""},
    "quantization.layouts.awq_gptq.AwqLayout": {"group": 128},
    "quantization.layouts.awq_gptq.GptqLayout": {
        "group": 128,
        "zeros_less_one": True,
        "symmetric": False,
        "sorted_inputs": False,
        "checks_groups": False,
    },
    "quantization.layouts.float4.Mxfp4Layout": {
        "weight": "weight_packed",
        "scale": "weight_scale",
        "rounds_inputs": False,
    },
    "quantization.layouts.float4.Nvfp4Layout": {
        "weight": "weight_packed",
        "tensor_scale": "weight_global_scale",
        "divides": True,
    },
    "quantization.layouts.float8.Float8Layout": {"scale": "weight_scale", "rounds_inputs": True},
    "quantization.layouts.integers.Int8Layout": {"scale": "weight_scale", "divisor": 1.0, "rounds_inputs": False},
    "quantization.layouts.integers.PackedInt4Layout": {"group": 128, "zero_points": False, "checks_shape": False},
    "quantization.layouts.stored.ExpectedWeight": {"any_length": False},
    "requirements.layer_weights.layer_weights": {"model_impl": "auto"},
    "requirements.parameters.Count": {"parameters": 0, "linear": 0, "idle": 0, "packed_bytes": 0},
    "requirements.placement.place": {"utilization": 0.9},
    "requirements.requirements.model_requirements": {"model_impl": "auto", "num_drafts": 0},
    "weights.loader.load_weights": {"progress": True},
    "weights.loader.load_dummy_weights": {"seed": 0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def found() -> Defaults:
    """Those of all modules that can be imported here."""
    return stated_defaults("atom_models")


def test_every_default_is_listed(found: Defaults):
    new = {name: own for name, own in found.items() if name not in DEFAULTS}
    assert new == {}, "write these into DEFAULTS"


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_nobody_gave_has_its_default(name: str, found: Defaults):
    assert found.get(name, DEFAULTS[name]) == DEFAULTS[name]
