"""What a setting, a request or a call of an engine is where nobody gave it."""

from __future__ import annotations

from typing import Any

from stated_defaults import stated_defaults

# What users of the engine give: settings, requests, calls, and what clients write into a structural tag.
MODULES = (
    "config.sections",
    "engine.async_engine",
    "engine.llm_engine",
    "errors",
    "kv_events.config",
    "messages.requests",
    "scheduler.config",
    "speculation.config",
    "structured_output.compiler",
    "structured_output.config",
    "structured_output.constraints.structural_tag",
)
# A new default is written here too: who changes one changes what callers get that never mention it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "config.sections.ModelConfig": {
        "quantization": "auto",
        "model_impl": "auto",
        "load_dummy": False,
        "skip_tokenizer_init": False,
        "seed": 0,
    },
    "config.sections.OffloadConfig": {"disk_bytes": 0},
    "config.sections.CacheConfig": {"strict_memory": False},
    "config.sections.ParallelConfig": {
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "data_parallel_rank": 0,
        "pipeline_parallel_size": 1,
        "enable_expert_parallel": False,
    },
    "config.sections.CompileConfig": {
        "level": 0,
        "graph_mode": "none",
        "graphs_required": False,
        "batch_invariant": False,
    },
    "config.sections.ProfilerConfig": {"more": False, "mark_trace": False},
    "engine.async_engine.AsyncEngine.start": {"timeout": 600.0},
    "engine.async_engine.AsyncEngine.restart": {"timeout": 600.0},
    "engine.async_engine.AsyncEngine.generate": {"priority": 0, "cache_salt": "", "tenant": ""},
    "engine.async_engine.AsyncEngine.embed": {"priority": 0, "cache_salt": "", "tenant": ""},
    "engine.async_engine.AsyncEngine.submit": {"priority": 0, "cache_salt": "", "tenant": ""},
    "engine.async_engine.AsyncEngine.check_room": {"n": 1, "num_tokens": 0, "tenant": ""},
    "engine.async_engine.AsyncEngine.sleep": {"level": 1},
    "engine.async_engine.AsyncEngine.shutdown": {"drain_timeout": 0.0},
    "engine.llm_engine.LLMEngine.generate": {"use_tqdm": True},
    "engine.llm_engine.LLMEngine.add_request": {"priority": 0, "tenant": ""},
    "engine.llm_engine.LLMEngine.sleep": {"level": 1},
    "errors.InvalidRequestError.__init__": {"code": "invalid_value"},
    "kv_events.config.KVEventsConfig": {
        "enable_kv_cache_events": False,
        "buffer_steps": 10000,
        "hwm": 100000,
        "topic": "",
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
    "scheduler.config.SchedulerConfig": {
        "long_prefill_share": 0.5,
        "async_scheduling": True,
        "scheduler_delay_factor": 0.0,
        "policy": "priority",
        "priority_ageing": 10.0,
        "num_stages": 1,
    },
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
    "structured_output.compiler.Compilation.__init__": {"deadline": 5.0},
    "structured_output.compiler.GrammarCompiler.__init__": {
        "max_grammars": 256,
        "max_bytes": 268435456,
        "deadline": 5.0,
    },
    "structured_output.config.StructuredOutputConfig": {"backend": "auto", "jump_forward": True},
    "structured_output.constraints.structural_tag.JsonSchema": {"style": "json"},
    "structured_output.constraints.structural_tag.TriggeredTags": {"at_least_one": False, "stop_after_first": False},
    "structured_output.constraints.structural_tag.TagsWithSeparator": {
        "at_least_one": False,
        "stop_after_first": False,
    },
}


def test_what_nobody_gave_has_its_default():
    assert stated_defaults("atom_core", MODULES) == DEFAULTS
