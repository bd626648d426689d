"""Nobody loses a feature: what ATOM does not have is vLLM's own, and the table in the docs says which."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, ROOT, SECONDS, STOCK, vllm_environment
from tests.with_vllm.generate import prompts

# Columns of the table in docs/vllm.md -> the family that stands for them.
FAMILIES = {
    "dense": "llama-3.1",
    "windows": "gemma3",
    "experts": "qwen3_moe",
    "sinks": "gpt_oss",
    "latents": "deepseek_v3",
}
FP8_TILES = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
# Its rows -> what asks for the feature.
FEATURES: dict[str, dict[str, Any]] = {
    "none of these": {},
    "LoRA": {"enable_lora": True},
    "pipeline parallel": {"pipeline_parallel_size": 2},
    "data parallel": {"data_parallel_size": 2},
    "decode context parallel": {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
    "expert parallel": {"enable_expert_parallel": True},
    "experts in turns": {"enable_expert_parallel": True, "expert_placement_strategy": "round_robin"},
    "pooling": {"runner": "pooling", "convert": "embed"},
    "speculation by n-grams": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    },
    "a quantized checkpoint": {"hf_overrides": {"quantization_config": FP8_TILES}, "dtype": "bfloat16"},
    "online quantization": {"quantization": "fp8", "dtype": "bfloat16"},
    "cache in fp8, on a CPU": {"kv_cache_dtype": "fp8", "dtype": "bfloat16"},
    "prompt embeddings": {"enable_prompt_embeds": True},
    "an attention backend by name": {"attention_backend": "CPU_ATTN"},
}
REFUSED = "refused by vLLM"
# What earlier versions refuse on a CPU besides.
REFUSED_EARLIER = "MLA is not supported on CPU"

pytestmark = pytest.mark.slow


def table() -> dict[str, dict[str, str]]:
    """The table in the docs: feature -> column -> cell."""
    lines = (ROOT / "docs" / "vllm.md").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| feature |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line.startswith("|")]
    end = next((index for index, line in enumerate(lines[start:]) if not line.startswith("|")), None)
    header, _, *body = rows[:end]
    return {name: dict(zip(header[1:], cells, strict=True)) for name, *cells in body}


def cell_of(decision: dict[str, str | None]) -> str:
    if "refused" in decision:
        return REFUSED
    ours = {"model": decision["model"] is None, "attention": decision["attention"] is None}
    if all(ours.values()):
        return "ATOM"
    return next((f"ATOM's {part}" for part, is_ours in ours.items() if is_ours), "vLLM")


def test_the_table_in_the_docs_says_what_happens(vllm_python: str, vllm_release, tiny, tmp_path: Path) -> None:
    pairs = [(feature, column) for feature in FEATURES for column in FAMILIES]
    cases = [FEATURES[feature] | {"model": str(tiny(FAMILIES[column]))} for feature, column in pairs]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).parent / "decisions.py"
    command = [vllm_python, str(script), str(tmp_path / "cases.json"), str(tmp_path / "decisions.json")]
    subprocess.run(command, env=vllm_environment(), check=True, timeout=SECONDS)
    decisions = json.loads((tmp_path / "decisions.json").read_text())
    documented = table()
    for (feature, column), decision in zip(pairs, decisions, strict=True):
        cell, found = documented[feature][column], cell_of(decision)
        if found == REFUSED != cell:
            assert vllm_release < (0, 32)
            assert REFUSED_EARLIER in str(decision["refused"]), (feature, column, decision)
        else:
            assert found == cell, (feature, column, decision)


def test_vllms_own_models_serve_what_ours_do_not_have(run_jobs, tiny) -> None:
    """With our attention in them, which gives the tokens of stock vLLM."""
    asked = ("LoRA", "prompt embeddings")
    job = {"model": tiny("llama-3.1"), "num_tokens": 24}
    jobs = [job | {"llm": {"max_model_len": 256} | FEATURES[name]} for name in asked]
    reasons = {
        "LoRA": "LlamaForCausalLM is vLLM's own, because LoRA adapters are asked for",
        "prompt embeddings": "LlamaForCausalLM is vLLM's own, because prompt embeddings are asked for",
    }
    theirs, ours = run_jobs(jobs, IN_PROCESS | STOCK), run_jobs(jobs, IN_PROCESS)
    for name, stock, outcome in zip(asked, theirs, ours, strict=True):
        assert stock.error is None, (name, stock.log[-4000:])
        assert reasons[name] in outcome.log, (name, outcome.log[-4000:])
        assert outcome.tokens == stock.tokens, name


def test_ours_is_the_target_of_what_guesses_by_tokens_and_of_a_whole_draft_model(run_jobs, tiny) -> None:
    """What speculation imports stops vLLM 0.32 from starting another engine in its process."""
    model = tiny("llama-3.1")
    by_tokens = FEATURES["speculation by n-grams"]["speculative_config"]
    by_model = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 2, "max_model_len": 256}
    for asked in (by_tokens, by_model):
        job = {"model": model, "llm": {"max_model_len": 256, "speculative_config": asked}, "num_tokens": 24}
        [stock], [outcome] = run_jobs([job], IN_PROCESS | STOCK), run_jobs([job], IN_PROCESS)
        assert stock.error is None, stock.log[-4000:]
        assert outcome.error is None, outcome.log[-4000:]
        assert "Register model LlamaForCausalLM to vLLM with" in outcome.log
        of_draft = "LlamaForCausalLM is vLLM's own, because it drafts for another model"
        assert (of_draft in outcome.log) == (asked is by_model)
        assert outcome.tokens == stock.tokens


def test_a_cache_in_fp8_generates_what_our_own_engine_does_on_any_cpu(run_jobs, tiny) -> None:
    """Stock vLLM refuses it where a CPU lacks AVX-512."""
    folder, num_tokens = tiny("llama-3.1"), 24
    ours = {"max_model_len": 256, "kv_cache_dtype": "fp8", "dtype": "float32"}
    [outcome] = run_jobs([{"model": folder, "llm": ours, "num_tokens": num_tokens}], IN_PROCESS)
    assert outcome.error is None, outcome.log[-4000:]
    assert ATTENTION_OURS in outcome.log
    with LLMEngine(str(folder), dtype="float32", kv_cache_dtype="fp8", skip_tokenizer_init=True) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        own = [output["token_ids"] for output in engine.generate(prompts(300), params, use_tqdm=False)]
    assert outcome.tokens == [own]


def test_pipelines_are_vllms_own(run_jobs, tiny) -> None:
    """Beside us they do what they do without us, which with eager steps on a CPU may be an error of vLLM's."""
    one_core_each = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    job = {"model": tiny("llama-3.1"), "llm": {"pipeline_parallel_size": 2}, "num_tokens": 8}
    [theirs], [ours] = run_jobs([job], one_core_each | STOCK), run_jobs([job], one_core_each)
    assert (ours.tokens, ours.error) == (theirs.tokens, theirs.error)
    assert "LlamaForCausalLM is vLLM's own, because pipeline parallelism is asked for" in ours.log
