"""What a field is where nobody gave it: every default of settings, messages and states."""

from __future__ import annotations

from typing import Any

import pytest

from field_defaults import Defaults, field_defaults

# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "config.sections.ModelConfig": {
        "quantization": "auto",
        "model_impl": "auto",
        "load_dummy": False,
        "skip_tokenizer_init": False,
        "seed": 0,
    },
    "config.sections.CacheConfig": {"strict_memory": False},
    "config.sections.ParallelConfig": {"tensor_parallel_size": 1, "data_parallel_size": 1, "data_parallel_rank": 0},
    "config.sections.CompileConfig": {
        "level": 0,
        "graph_mode": "none",
        "graphs_required": False,
        "batch_invariant": False,
    },
    "config.sections.ProfilerConfig": {"more": False, "mark_trace": False},
    "engine.embedding_model.EmbeddingModel": {"pooling": "mean", "is_any_shorter": False},
    "engine.info.EngineInfo": {"num_groups": 1, "tensor_parallel_size": 1, "data_parallel_size": 1},
    "engine.inputs.queue_limits.Load": {"num_samples": 0, "num_tokens": 0},
    "engine.inputs.validation.RequestLimits": {"max_request_logprobs": 2097152, "can_generate": True},
    "engine.process.wire.Pulse": {"num_steps": 0, "longest_step": 0.0},
    "engine.process.wire.Launch": {"data_parallel_rank": 0},
    "engine.replicas.status.EngineStatus": {"num_restarts": 0},
    "executor.processes.wire.Join": {"first_device": 0},
    "executor.processes.wire.Loaded": {"num_slots": 0, "num_snapshots": 0, "launches": False},
    "executor.processes.wire.Failed": {"lost_others": False},
    "kv_cache.config.KVCacheConfig": {
        "enable_prefix_caching": True,
        "prefix_hash": "xxhash64",
        "names_cover_next": False,
        "num_slots": 0,
        "num_snapshots": 0,
    },
    "messages.outputs.EngineOutput": {
        "num_cached_tokens": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "started": 0.0,
    },
    "messages.outputs.StepStats": {
        "num_forced_tokens": 0,
        "num_drafts": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "num_not_finite": 0,
        "num_waiting_for_grammar": 0,
        "num_late_captures": 0,
        "num_late_compilations": 0,
        "num_kept_output_tokens": 0,
    },
    "messages.outputs.RequestOutput": {
        "index": 0,
        "text_delta": "",
        "num_prompt_tokens": 0,
        "num_cached_tokens": 0,
        "num_output_tokens": 0,
        "queued": 0.0,
        "ttft": 0.0,
        "latency": 0.0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
    },
    "messages.requests.ThinkingBudget": {"is_open": False},
    "messages.requests.SamplingParams": {
        "temperature": 1.0,
        "max_tokens": 64,
        "ignore_eos": False,
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.0,
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "include_stop_str_in_output": False,
        "min_tokens": 0,
        "skip_special_tokens": True,
    },
    "messages.requests.EngineRequest": {
        "kind": "generate",
        "arrival_time": 0.0,
        "priority": 0,
        "cache_salt": "",
        "sample_index": 0,
        "pooling": "mean",
        "tenant": "",
    },
    "messages.requests.Submission": {
        "kind": "generate",
        "arrival_time": 0.0,
        "priority": 0,
        "cache_salt": "",
        "pooling": "mean",
        "tenant": "",
    },
    "messages.states.RequestState": {"num_computed_tokens": 0, "num_output_tokens": 0},
    "messages.steps.ScheduledRequest": {"num_next_drafts": 0},
    "messages.steps.ModelOutput": {"num_late_captures": 0, "num_late_compilations": 0},
    "scheduler.config.SchedulerConfig": {
        "long_prefill_share": 0.5,
        "async_scheduling": True,
        "scheduler_delay_factor": 0.0,
        "policy": "priority",
        "priority_ageing": 10.0,
    },
    "scheduler.request.Request": {
        "has_run": False,
        "num_computed_tokens": 0,
        "num_samples_in_flight": 0,
        "num_drafts_in_flight": 0,
        "forced_at": 0,
        "num_steps_in_flight": 0,
        "last_step_id": -1,
        "num_cached_tokens": 0,
        "started": 0.0,
        "num_tokens_at_worker": 0,
        "is_held": False,
    },
    "scheduler.step_plan.PlannedRow": {"num_next_drafts": 0},
    "scheduler.tenant.Tenant": {"served": 0.0, "num_requests": 0},
    "speculation.config.SuffixConfig": {
        "max_tree_depth": 24,
        "max_cached_requests": 10000,
        "max_spec_factor": 1.0,
        "min_token_prob": 0.1,
    },
    "speculation.config.SpeculationConfig": {
        "method": "ngram",
        "num_tokens": 1,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
        "adaptive": True,
        "quantization": "auto",
    },
    "structured_output.config.StructuredOutputConfig": {"backend": "auto", "jump_forward": True},
    "structured_output.constraints.structural_tag.JsonSchema": {"style": "json"},
    "structured_output.constraints.structural_tag.TriggeredTags": {"at_least_one": False, "stop_after_first": False},
    "structured_output.constraints.structural_tag.TagsWithSeparator": {
        "at_least_one": False,
        "stop_after_first": False,
    },
    "structured_output.judge.messages.Verdict": {"is_last": False},
    "tokenization.gguf_pre_tokenizers.PreTokenizer": {
        "digits": "",
        "nfc": False,
        "ignore_merges": False,
        "adds_bos": False,
    },
    "worker.cache.pages.CachePages": {"slot_bytes": 0},
    "worker.cache.size.CacheSize": {"num_slots": 0, "num_snapshots": 0},
    "worker.graphs.shapes.GraphShape": {"tokens_each": 1},
    "worker.model.engine_draft.EngineDraft": {"prefix": ""},
    "worker.model.engine_model.EngineModel": {"num_idle_weights": 0, "num_groups": 0},
    "worker.runner.RunnerInfo": {"num_slots": 0, "num_snapshots": 0, "launches": False},
}


@pytest.fixture(scope="module")
def found() -> Defaults:
    """Those of all modules that can be imported here."""
    return field_defaults("atom_core")


def test_every_default_is_listed(found: Defaults):
    assert found.keys() - DEFAULTS.keys() == {"config.engine_args.EngineArgs"}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_field_that_nobody_gave_has_its_default(name: str, found: Defaults):
    assert found.get(name, DEFAULTS[name]) == DEFAULTS[name]
