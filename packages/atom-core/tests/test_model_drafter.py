"""A draft model behind the worker's steps: what it is given, where it keeps it, and what it guesses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_core.messages import ModelOutput, NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.worker.drafting.decodes import DraftDecodes
from atom_core.worker.model.dummy_steps import dummy_geometry
from atom_core.worker.model_runner import ModelRunner
from toy_drafts import HEAD_DIM, HEADS, KV_HEADS, ToyDraft, config_of, load_with_draft

PROMPT = [5, 9, 13, 40, 41, 42, 7, 300, 301, 2, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86]
# Blocks of 16 tokens, in no order.
BLOCKS = {"a": [9, 4, 6], "b": [2, 11, 7], "c": [1, 14, 12]}


def make_runner(folder: Path, *, aux: tuple[int, ...] = (), **draft: Any) -> ModelRunner:
    config = config_of(
        folder, dtype="float32", num_kv_blocks=16, max_num_seqs=4, num_threads=1, enable_prefix_caching=False
    )
    make_draft = partial(ToyDraft, aux=aux, **draft)
    runner = ModelRunner(config, partial(load_with_draft, make_draft, aux=aux))
    runner.load()
    return runner


def run(runner: ModelRunner, *scheduled: ScheduledRequest, new: dict[str, list[int]] | None = None) -> ModelOutput:
    """A step; `new` are requests that begin with it, with all their blocks."""
    requests = [
        NewRequest(name, token_ids, len(token_ids), SamplingParams(temperature=0.0), (), 0)
        for name, token_ids in (new or {}).items()
    ]
    runner.forward(SchedulerOutput(0, list(scheduled), requests, []))
    return runner.sample(None)()


def row(name: str, start: int, length: int, *, drafts: tuple[int, ...] = (), samples: bool = True, **fields: Any):
    num_samples = fields.pop("num_samples", 1 + len(drafts) if samples else 0)
    blocks = [BLOCKS[name]] if fields.pop("is_new", start == 0) else []
    return ScheduledRequest(name, start, length, blocks, num_samples, drafts, **fields)


def by_definition(runner: ModelRunner, token_ids: list[int], number: int) -> list[int]:
    """The drafts after `token_ids`, of which all but the last were computed; without a cache."""
    draft: Any = runner.running.model.draft.model
    states = whole_states(runner, token_ids[:-1])
    features = draft.features(*states)
    ids, inputs, guessed = token_ids[1:], [], []
    for made in range(number):
        inputs.append(draft.inputs(torch.tensor(ids), features))
        x = torch.cat(inputs)
        features = draft.outputs(x, attend(draft, x), made)[-1:]
        best = int(draft.compute_logits(features).argmax())
        guessed.append(best if draft.target_ids is None else int(draft.target_ids[best]))
        ids = guessed[-1:]
    return guessed


def attend(draft: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ draft.qkv).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=-1)
    heads = (part.view(len(x), -1, HEAD_DIM).transpose(0, 1) for part in (q, k, v))
    mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    window = draft.attention.problem.sliding_window
    if window is not None:
        mask = mask.triu(1 - window)
    attended = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
    return attended.transpose(0, 1).reshape(len(x), -1)


@torch.inference_mode()
def whole_states(runner: ModelRunner, token_ids: list[int]) -> tuple[torch.Tensor, Any]:
    """The states of a prompt by itself, in blocks of its own that are put back."""
    caches = [tensor for caches in runner.running.model.cached.kv_caches.values() for tensor in caches]
    kept = [tensor.clone() for tensor in caches]
    positions = torch.arange(len(token_ids))
    geometries = []
    for group in range(runner.running.model.num_groups):
        block_table = torch.tensor([[13, 15, 10]], dtype=torch.int32) + 16 * group
        slots = block_table[0][positions // 16].long() * 16 + positions % 16
        geometry = dummy_geometry([len(token_ids)], 16, "cpu")
        geometries.append(replace(geometry, block_table=block_table, slot_mapping=slots))
    states = runner.running.model.forward(torch.tensor(token_ids), positions, geometries)
    for tensor, before in zip(caches, kept, strict=True):
        tensor.copy_(before)
    return states


@pytest.fixture(scope="module")
def runner(tiny_llama: Path) -> ModelRunner:
    return make_runner(tiny_llama)


def after_prompt(runner: ModelRunner, prompt: list[int], number: int = 4, name: str = "a") -> tuple[int, list[int]]:
    """The first token and the drafts after it, of a prompt in one step."""
    output = run(runner, row(name, 0, len(prompt), num_next_drafts=number), new={name: prompt})
    drop(runner, name)
    [result] = output.requests
    return result.token_ids[0], list(result.next_draft_token_ids)


def drop(runner: ModelRunner, *names: str) -> None:
    runner.running.states.update(SchedulerOutput(0, [], [], list(names)))


@torch.inference_mode()
def test_each_token_is_paired_with_the_features_before_it_and_drafts_follow_the_sampled_one(runner):
    for length in (1, 2, 15, 16, 17, 20):
        token, drafts = after_prompt(runner, PROMPT[:length])
        assert drafts == by_definition(runner, [*PROMPT[:length], token], 4)


def test_a_toy_draft_heeds_all_that_comes_before(runner):
    """Else the tests here would not see a wrong slot."""
    changed = [[*PROMPT[:3], 11, *PROMPT[4:]], [17, *PROMPT[1:]]]
    _, drafts = after_prompt(runner, PROMPT)
    assert all(after_prompt(runner, other)[1] != drafts for other in changed)


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_the_chunks_of_a_prompt_do_not_show_in_its_drafts(runner, chunk):
    _, expected = after_prompt(runner, PROMPT)
    for start in range(0, len(PROMPT), chunk):
        is_last = start + chunk >= len(PROMPT)
        length = min(chunk, len(PROMPT) - start)
        entry = row("b", start, length, samples=is_last, num_next_drafts=4 if is_last else 0)
        output = run(runner, entry, new={"b": PROMPT} if start == 0 else None)
    drop(runner, "b")
    assert list(output.requests[0].next_draft_token_ids) == expected


@torch.inference_mode()
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_what_rejected_drafts_left_is_written_again(runner, num_right):
    """Two steps with drafts, of which some are right: the drafts after each are those of a request that had none."""
    token, _ = after_prompt(runner, PROMPT)
    plain = [*PROMPT, token]
    for _ in range(12):
        plain.append(after_prompt(runner, plain)[0])
    known = len(PROMPT) + 1
    run(runner, row("c", 0, len(PROMPT), num_next_drafts=3), new={"c": PROMPT})
    for _ in range(2):
        right = plain[known : known + num_right]
        drafts = (*right, *((token_id + 1) % 512 for token_id in plain[known + num_right : known + 3]))
        output = run(runner, row("c", known - 1, 4, drafts=drafts, num_next_drafts=4))
        [result] = output.requests
        assert result.token_ids == plain[known : known + num_right + 1]
        known += num_right + 1
        assert list(result.next_draft_token_ids) == by_definition(runner, plain[:known], 4)
    drop(runner, "c")


def test_requests_side_by_side_get_as_many_drafts_as_they_ask_for(runner):
    prompts = {"a": PROMPT[:7], "b": PROMPT[3:], "c": PROMPT[::-1]}
    alone = {name: after_prompt(runner, prompt, 5)[1] for name, prompt in prompts.items()}
    for numbers in ((5, 2, 0), (0, 1, 5), (1, 1, 1), (2, 5, 3)):
        rows = [
            row(name, 0, len(prompts[name]), num_next_drafts=number)
            for name, number in zip(prompts, numbers, strict=True)
        ]
        output = run(runner, *rows, new=prompts)
        drop(runner, *prompts)
        got = [list(result.next_draft_token_ids) for result in output.requests]
        assert got == [alone[name][:number] for name, number in zip(prompts, numbers, strict=True)]


@torch.inference_mode()
def test_nothing_is_written_outside_of_the_requests_blocks_and_the_slots_that_drafts_need(runner):
    layer = "draft.layers.0.self_attn.attn"
    caches = runner.running.model.draft.cached.kv_caches[layer]
    for tensor in caches:
        tensor.fill_(7.0)
    after_prompt(runner, PROMPT[:14], 4, name="c")
    is_written = [(tensor != 7.0).flatten(1).any(dim=1).nonzero()[:, 0].tolist() for tensor in caches]
    # 14 tokens and three of the four drafts take one token of the second block.
    assert all(blocks == [1, 14] for blocks in is_written)
    for tensor in caches:
        tensor.fill_(7.0)
    after_prompt(runner, PROMPT[:14], 3, name="c")
    is_written = [(tensor != 7.0).flatten(1).any(dim=1).nonzero()[:, 0].tolist() for tensor in caches]
    assert all(blocks == [1] for blocks in is_written)


@torch.inference_mode()
def test_a_draft_may_read_the_states_between_layers(tiny_llama):
    runner = make_runner(tiny_llama, aux=(0, 1))
    token, drafts = after_prompt(runner, PROMPT)
    assert drafts == by_definition(runner, [*PROMPT, token], 4)
    assert drafts != after_prompt(make_runner(tiny_llama), PROMPT)[1]


@torch.inference_mode()
def test_a_draft_with_a_vocabulary_of_its_own_guesses_ids_of_the_target(tiny_llama):
    kept = list(range(40, 500, 3))
    runner = make_runner(tiny_llama, kept=kept)
    token, drafts = after_prompt(runner, PROMPT)
    assert drafts == by_definition(runner, [*PROMPT, token], 4)
    assert set(drafts) <= set(kept)


@torch.inference_mode()
def test_a_draft_with_a_window_has_a_group_of_its_own(tiny_llama):
    """With places for one layer, the two of the target make two groups."""
    runner = make_runner(tiny_llama, sliding_window=6)
    assert runner.running.model.num_groups == 3
    entry = ScheduledRequest("a", 0, len(PROMPT), list(BLOCKS.values()), 1, (), 4)
    output = run(runner, entry, new={"a": PROMPT})
    [result] = output.requests
    assert list(result.next_draft_token_ids) == by_definition(runner, [*PROMPT, *result.token_ids], 4)


def test_each_pass_has_its_places_in_one_piece_of_memory_and_none_behind_its_room():
    """Three requests in blocks of 4: one has room for three drafts, one for two, and one pads the batch."""
    block_tables = torch.tensor([[[5, 6, 7], [1, 2, 3], [0, 0, 0]], [[8, 9, 10], [11, 12, 13], [0, 0, 0]]]).int()
    positions, numbers = torch.tensor([3, 5, 0]), torch.tensor([3, 2, 0])
    decodes = DraftDecodes(block_tables, positions, max_seq_len=12, block_size=4, numbers_W=numbers)
    first, second = decodes.passes(2)
    assert (first[0].tolist(), second[0].tolist()) == ([4, 6, 0], [5, 6, 0])
    assert [geometry.slot_mapping.tolist() for geometry in first[1]] == [[24, 10, -1], [36, 50, -1]]
    assert [geometry.slot_mapping.tolist() for geometry in second[1]] == [[25, -1, -1], [37, -1, -1]]
    assert [each[1][0].seq_lens.tolist() for each in (first, second)] == [[5, 7, 1], [6, 7, 1]]
    for places, geometries in (first, second):
        for tensor in (places, *(x for one in geometries for x in (one.slot_mapping, one.seq_lens))):
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % 16 == 0
