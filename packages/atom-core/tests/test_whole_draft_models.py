"""A whole small model that drafts: it changes no token, however the engine works, and is right where it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from asked_for import ASKED, WAYS, make_params, make_prompts, run, what_counts
from atom_core import EngineArgs, LLMEngine
from atom_core.config import ConfigError
from atom_core.engine.startup import open_model, resolve
from atom_core.worker.model.engine_draft import EngineDraft
from atom_models import CheckpointError
from tiny_models import make_tiny_llama


def drafting(model: Path, num_tokens: int = 3, **fields: Any) -> dict[str, Any]:
    config = {"method": "draft_model", "model": str(model), "num_speculative_tokens": num_tokens, "adaptive": False}
    return {"speculative_config": config | fields}


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Another model of the same tokens: of other sizes, and with other weights."""
    folder = tmp_path_factory.mktemp("other")
    return make_tiny_llama(folder, seed=5, num_layers=1, num_heads=2, kv_heads=1, hidden=32, intermediate=48)


@pytest.fixture(scope="module")
def plain(engine: LLMEngine) -> Callable[[str], list[dict[str, Any]]]:
    """``plain(asked)``: what five prompts give without drafts, in no way but the plain one."""
    return cache(lambda asked: run(engine, make_prompts(5), **ASKED[asked]))


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_model_changes_nothing(make_engine, plain, other, way):
    engine = make_engine(**drafting(other), **WAYS[way])
    for asked in ("greedy", "penalties", "samples"):
        assert what_counts(run(engine, make_prompts(5), **ASKED[asked])) == what_counts(plain(asked))
    assert engine.stats.num_draft_tokens > 150
    assert (engine.stats.num_preemptions > 0) == ("num_kv_blocks" in WAYS[way])
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.parametrize("num_tokens", [1, 6])
def test_a_model_that_drafts_for_itself_is_always_right_where_the_likeliest_token_is_taken(
    make_engine, tiny_llama, num_tokens
):
    engine = make_engine(**drafting(tiny_llama, num_tokens))
    outputs = run(engine, make_prompts(5), temperature=0.0, max_tokens=40)
    assert what_counts(outputs) == what_counts(run(make_engine(), make_prompts(5), temperature=0.0, max_tokens=40))
    assert engine.stats.num_accepted_tokens == engine.stats.num_draft_tokens > 90


def expected_counts(output: dict[str, Any], num_drafts: int) -> tuple[int, int]:
    """Drafts of a request, and accepted ones, if each draft is the likeliest token after those before it."""
    tokens, made, accepted, place = output["token_ids"], 0, 0, 1
    likeliest = [entry.top[0][0] for entry in output["logprobs"]]
    number = num_drafts
    while place < len(tokens):
        right = 0
        while right < number and tokens[place + right] == likeliest[place + right]:
            right += 1
        made, accepted = made + number, accepted + right
        # Those behind a step were made when all of its drafts could still have been right.
        number = max(min(num_drafts, len(tokens) - 2 - place - number), 0)
        place += right + 1
    return made, accepted


@pytest.mark.parametrize("way", [way for way in WAYS if way != "preempted"])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_each_guess_of_the_model_itself_is_its_likeliest_token_whatever_was_rejected_before(
    make_engine, tiny_llama, num_tokens, way
):
    """So all that it keeps is what it keeps when it generates; prompts are found in the cache the second time.

    Where steps run ahead, a request that may have all of its tokens in flight has fewer guesses at its end.
    """
    options = WAYS[way] | ({"async_scheduling": False} if way == "plain" else {})
    ahead = options.get("async_scheduling", True)
    engine = make_engine(**drafting(tiny_llama, num_tokens), **options)
    prompts = [(prompt * 9)[:40] for prompt in make_prompts(2)]
    for is_cached in (False, True):
        before = engine.stats
        outputs = run(engine, prompts, temperature=0.3, max_tokens=60, logprobs=1)
        counts = [expected_counts(output, num_tokens) for output in outputs]
        lacking = sum(made for made, _ in counts) - (engine.stats.num_draft_tokens - before.num_draft_tokens)
        accepted = sum(right for _, right in counts)
        not_accepted = accepted - (engine.stats.num_accepted_tokens - before.num_accepted_tokens)
        assert 0 <= not_accepted <= lacking <= (2 * num_tokens * len(prompts) if ahead else 0)
        assert 20 < accepted < sum(made for made, _ in counts) - 20
        assert any(output["num_cached_tokens"] for output in outputs) == is_cached


def test_another_model_is_seldom_right(make_engine, other):
    engine = make_engine(**drafting(other))
    run(engine, make_prompts(5), temperature=0.0, max_tokens=40)
    assert engine.stats.num_accepted_tokens < 0.1 * engine.stats.num_draft_tokens


def test_what_is_generated_serves_the_draft_model_of_a_longer_request(make_engine, tiny_llama):
    engine, prompts = make_engine(**drafting(tiny_llama)), make_prompts(3, longest=30)
    outputs = run(engine, prompts, temperature=1.0, max_tokens=40)
    longer = [[*prompt, *output["token_ids"], 9] for prompt, output in zip(prompts, outputs, strict=True)]
    before = engine.stats
    assert all(output["num_cached_tokens"] >= 32 for output in run(engine, longer, temperature=0.0))
    made = engine.stats.num_draft_tokens - before.num_draft_tokens
    assert engine.stats.num_accepted_tokens - before.num_accepted_tokens == made > 30


def test_an_adaptive_engine_with_a_whole_model_changes_nothing(make_engine, tiny_llama):
    prompts, asked = make_prompts(4), {"temperature": 0.0, "max_tokens": 60}
    engine = make_engine(**drafting(tiny_llama, adaptive=True))
    assert what_counts(run(engine, prompts, **asked)) == what_counts(run(make_engine(), prompts, **asked))


def let_follow(engine: LLMEngine, is_on: bool) -> None:
    following = engine._core._scheduler._drafting._speculation.following
    following.is_on, following._steps_to_trial = is_on, 1 << 30


def test_a_model_that_follows_no_step_computes_nothing_and_is_as_right_later(make_engine, tiny_llama, monkeypatch):
    """Also behind prompts that were cached while it did not follow."""
    batches: list[int] = []
    forward = EngineDraft.forward

    def count(self, input_ids, *args, **options):
        batches.append(len(input_ids))
        return forward(self, input_ids, *args, **options)

    monkeypatch.setattr(EngineDraft, "forward", count)
    prompts, asked = [(prompt * 9)[:40] for prompt in make_prompts(3)], {"temperature": 0.0, "max_tokens": 40}
    plain = what_counts(run(make_engine(), prompts, **asked))
    engine = make_engine(**drafting(tiny_llama))
    batches.clear()
    let_follow(engine, False)
    assert what_counts(run(engine, prompts, **asked)) == plain
    assert (batches, engine.stats.num_draft_tokens) == ([], 0)
    let_follow(engine, True)
    for _ in range(2):
        before = engine.stats
        assert what_counts(run(engine, prompts, **asked)) == plain
        made = engine.stats.num_draft_tokens - before.num_draft_tokens
        assert engine.stats.num_accepted_tokens - before.num_accepted_tokens == made > 60
    assert len(batches) > 30


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_follows_now_and_then_changes_nothing(make_engine, tiny_llama, way):
    prompts, asked = make_prompts(5), {"temperature": 0.6, "max_tokens": 40}
    plain = what_counts(run(make_engine(), prompts, **asked))
    engine = make_engine(**drafting(tiny_llama), **WAYS[way])
    ids = engine.add_request(prompts, make_params(5, **asked))
    tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
    for step in range(10_000):
        let_follow(engine, step % 24 < 16)
        for output in engine.step():
            tokens[output["request_id"]] = output["token_ids"]
        if engine.is_finished():
            break
    assert list(tokens.values()) == [output["token_ids"] for output in plain]
    assert engine.stats.num_draft_tokens > 10


# --- what is refused -------------------------------------------------------------------------------------------------


def refusal(target: Path, draft: Path, **options: Any) -> str:
    args = EngineArgs(model=str(target), **(drafting(draft) | options))
    with pytest.raises(ConfigError) as caught:
        resolve(args, open_model(args))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_of_another_vocabulary_is_refused(tiny_llama, tmp_path):
    draft = make_tiny_llama(tmp_path, vocab=520)
    assert "has a vocabulary of 520 tokens, and " in refusal(tiny_llama, draft)


def test_a_model_whose_tokens_differ_is_refused_and_one_without_a_tokenizer_is_taken(tiny_llama, tmp_path):
    draft = make_tiny_llama(tmp_path)
    path = draft / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    one, two = [token for token, token_id in vocab.items() if token_id in (300, 301)]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    path.write_text(json.dumps(tokenizer))
    message = refusal(tiny_llama, draft)
    assert f"{draft} has {two!r} as token 300, which in {tiny_llama} is {one!r}: " in message
    assert "take a draft model of the same tokenizer" in message
    path.unlink()
    args = EngineArgs(model=str(tiny_llama), **drafting(draft))
    speculation = resolve(args, open_model(args)).speculation
    assert speculation is not None
    assert speculation.model == str(draft)


def test_a_model_of_shorter_texts_is_refused_unless_requests_are_as_short(tiny_llama, tmp_path):
    draft = make_tiny_llama(tmp_path, max_position=128)
    message = refusal(tiny_llama, draft)
    assert "was made for at most 128 tokens, and max_model_len is 512: give max_model_len 128" in message
    args = EngineArgs(model=str(tiny_llama), max_model_len=128, **drafting(draft))
    assert resolve(args, open_model(args)).speculation is not None


def test_a_quantization_that_a_draft_model_cannot_take_is_refused(tiny_llama, tmp_path):
    unknown = make_tiny_llama(tmp_path / "unknown", quantization_config={"quant_method": "bitnet"})
    assert f"the draft model {unknown}: " in refusal(tiny_llama, unknown)
    stored = make_tiny_llama(
        tmp_path / "stored", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}
    )
    assert "int8" in refusal(tiny_llama, stored, **drafting(stored, quantization="int8"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": ["Qwen3NextForCausalLM"]}, "a rejected draft cannot be taken out of its state"),
        ({"architectures": ["NobodysForCausalLM"]}, "NobodysForCausalLM"),
    ],
    ids=str,
)
def test_a_model_that_cannot_draft_is_refused_by_name(tiny_llama, tmp_path, fields, reason):
    assert reason in refusal(tiny_llama, make_tiny_llama(tmp_path, **fields))


def test_a_draft_model_that_ranks_cannot_share_is_refused(tmp_path):
    target = make_tiny_llama(tmp_path / "target")
    draft = make_tiny_llama(tmp_path / "draft", num_heads=3, kv_heads=1, hidden=48)
    args = EngineArgs(model=str(target), tensor_parallel_size=2, **drafting(draft))
    with pytest.raises((ConfigError, CheckpointError), match="3"):
        resolve(args, open_model(args))
