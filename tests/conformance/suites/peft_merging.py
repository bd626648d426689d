# /// script
# requires-python = ">=3.11"
# dependencies = ["peft==0.21.2", "httpx==0.28.1", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""PEFT: adapters that it saved, served beside each other, answer as transformers does with its merged weights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PROMPTS = [[17], [40, 2, 99, 7, 7, 201], [3 + 5 * position % 250 for position in range(70)]]
NUM_TOKENS, NUM_TOP = 12, 5
ALL = "all-linear"
ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "every_linear": {"r": 8, "lora_alpha": 12, "target_modules": ALL},
    "one_layer": {"r": 2, "lora_alpha": 8, "target_modules": ["o_proj", "down_proj"], "layers_to_transform": [1]},
    "expression": {"r": 4, "lora_alpha": 8, "target_modules": r".*\.layers\.0\.(self_attn\.k_proj|mlp\.gate_proj)"},
    "rslora": {"r": 9, "lora_alpha": 6, "target_modules": ALL, "use_rslora": True},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 7, "layers.1.mlp.down_proj": 2},
        "alpha_pattern": {"k_proj": 24, r"layers\.0\..*up_proj": 3},
    },
    "rslora_patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL,
        "use_rslora": True,
        "rank_pattern": {"gate_proj": 3},
        "alpha_pattern": {"gate_proj": 5},
    },
}
Answer = tuple[list[int], list[float], list[list[float]]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama, whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("base")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*alphabet, "</s>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def merged(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, LlamaForCausalLM]]:
    """The folder of each adapter, as PEFT saved it, and the model into which PEFT merged it."""
    folders, whole = {}, {}
    for seed, (name, fields) in enumerate(ADAPTERS.items(), start=1):
        torch.manual_seed(seed)
        # B begins at zero, as training does, unless PEFT is told not to.
        config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **fields)
        adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
        folders[name] = tmp_path_factory.mktemp(name)
        adapted.save_pretrained(folders[name])
        whole[name] = adapted.merge_and_unload().eval()
    return folders, whole


@pytest.fixture(scope="module")
def answers(base, merged, serve: Callable[..., str]) -> dict[str, list[Answer]]:
    """What one server answers to `PROMPTS` by each adapter and by the plain model; all requests are sent at once."""
    modules = [f"{name}={folder}" for name, folder in merged[0].items()]
    flags = ["--model", base, "--served-model-name", "base", "--num-kv-blocks", "512", "--lora-modules", *modules]
    url = serve(*flags)

    def ask(name: str, prompt: list[int]) -> Answer:
        body = {"model": name, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        more = {"logprobs": NUM_TOP, "return_token_ids": True, "return_tokens_as_token_ids": True}
        answer = httpx.post(f"{url}/v1/completions", json=body | more, timeout=120)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        logprobs = choice["logprobs"]
        top = [sorted(of_token.values(), reverse=True)[:NUM_TOP] for of_token in logprobs["top_logprobs"]]
        return choice["token_ids"], logprobs["token_logprobs"], top

    with ThreadPoolExecutor(32) as threads:
        asked = {name: [threads.submit(ask, name, prompt) for prompt in PROMPTS] for name in ("base", *ADAPTERS)}
        return {name: [answer.result() for answer in of_name] for name, of_name in asked.items()}


@torch.inference_mode()
def greedy(model: LlamaForCausalLM, prompt: list[int]) -> Answer:
    """The likeliest tokens by transformers, their log probabilities, and the largest at each of their places."""
    tokens = list(prompt)
    logprobs, top = [], []
    for _ in range(NUM_TOKENS):
        row = model(torch.tensor([tokens])).logits[0, -1].double().log_softmax(-1)
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
        top.append(row.topk(NUM_TOP).values.tolist())
    return tokens[len(prompt) :], logprobs, top


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_answers_as_the_model_into_which_peft_merged_it(name: str, answers, merged):
    for prompt, (tokens, logprobs, top) in zip(PROMPTS, answers[name], strict=True):
        expected_tokens, expected_logprobs, expected_top = greedy(merged[1][name], prompt)
        assert tokens == expected_tokens
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
        torch.testing.assert_close(torch.tensor(top), torch.tensor(expected_top), atol=1e-4, rtol=0)


def test_no_two_of_them_answer_alike(answers):
    """Otherwise an adapter that does nothing, or another one's, would pass."""
    of_longest = [tuple(of_name[-1][1]) for of_name in answers.values()]
    distances = torch.cdist(torch.tensor(of_longest), torch.tensor(of_longest), p=torch.inf).fill_diagonal_(torch.inf)
    assert float(distances.min()) > 0.01
