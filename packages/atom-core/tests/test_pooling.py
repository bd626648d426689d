"""Prompts of a step are pooled together: each as if it were alone, and without what only sampling needs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom_core import InvalidRequestError, LLMEngine, SamplingParams
from atom_core.messages import NewRequest, Pooling, ScheduledRequest, SchedulerOutput
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.pooling import COLUMNS, Pooler
from atom_core.worker.steps.batch import StepRows

SIZE = COLUMNS + 6


def request(name: str, pooling: Pooling | None, states_TD: torch.Tensor) -> NewRequest:
    num_tokens = len(states_TD)
    params = SamplingParams(temperature=0.5, max_tokens=0)
    return NewRequest(name, list(range(num_tokens)), num_tokens, params, (), 0, pooling)


def step_of(new: list[NewRequest], parts: dict[str, tuple[int, int]]) -> SchedulerOutput:
    """A step of these tokens of each request, from the first number up to the second."""
    scheduled = [ScheduledRequest(name, first, end - first, [], 0) for name, (first, end) in parts.items()]
    return SchedulerOutput(0, scheduled, new, [])


def by_hand(states_TD: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    x_TD = states_TD.double()
    vector_D = {"mean": x_TD.mean(dim=0), "last": x_TD[-1], "cls": x_TD[0]}[pooling.kind]
    if pooling.classifies:
        return classify(vector_D[None].to(states_TD.dtype))[0].float()
    return (torch.nn.functional.normalize(vector_D, dim=0) if pooling.normalizes else vector_D).float()


def classify(rows_nD: torch.Tensor) -> torch.Tensor:
    return rows_nD[:, :2] * 3


def pool(pooler: Pooler, states: dict[str, torch.Tensor], step: SchedulerOutput) -> dict[str, torch.Tensor]:
    pooler.update(step)
    rows = StepRows.of(step, dict(zip(states, range(len(states)), strict=True)))
    parts = [states[each.request_id][each.num_computed_tokens :][: each.num_new_tokens] for each in step.scheduled]
    found = pooler.pool(step, rows, torch.cat(parts))
    return {
        step.scheduled[index].request_id: row
        for pooled in found
        for index, row in zip(pooled.indices, pooled.rows, strict=True)
    }


WAYS = {
    "first": Pooling("cls"),
    "written": None,
    "mean": Pooling("mean"),
    "last": Pooling("last", normalizes=False),
    "also mean": Pooling("mean"),
    "label": Pooling("cls", classifies=True),
}


@pytest.fixture
def states() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(2 + 3 * index, SIZE) for index, name in enumerate(WAYS)}


def test_every_prompt_of_a_step_gets_its_own_vector_whatever_stands_beside_it(states):
    new = [request(name, pooling, states[name]) for name, pooling in WAYS.items()]
    found = pool(Pooler(classify), states, step_of(new, {name: (0, len(states[name])) for name in WAYS}))
    wanted = {name: by_hand(states[name], pooling) for name, pooling in WAYS.items() if pooling is not None}
    assert found.keys() == wanted.keys()
    for name, vector in wanted.items():
        torch.testing.assert_close(found[name], vector)


def test_a_prompt_in_three_steps_is_pooled_as_a_whole_one(states):
    pooler, long = Pooler(classify), ["mean", "last", "label"]
    new = [request(name, WAYS[name], states[name]) for name in long]
    assert not pool(pooler, states, step_of(new, dict.fromkeys(long, (0, 3))))
    assert not pool(pooler, states, step_of([], dict.fromkeys(long, (3, 5))))
    # One of them has more tokens to come still.
    ends = {"mean": (5, 8), "last": (5, 11), "label": (5, 9)}
    found = pool(pooler, states, step_of([], ends))
    assert found.keys() == {"mean", "last"}
    for name in found:
        torch.testing.assert_close(found[name], by_hand(states[name], WAYS[name]))


def test_what_is_pooled_writes_no_parameters_of_sampling(states):
    tables = HostTables(4, 32, block_size=16, num_groups=1)
    kept = RequestStates(4, tables, num_groups=1, vocab_size=99, device="cpu")
    kept.update(step_of([request("mean", WAYS["mean"], states["mean"])], {"mean": (0, 8)}))
    assert not tables.arrays["temperature"].any()
    assert np.array_equal(tables.arrays["history"][kept.slots["mean"], :8], range(8))
    kept.update(step_of([request("written", None, states["written"])], {"written": (0, 5)}))
    assert tables.arrays["temperature"][kept.slots["written"]] == 0.5


def test_texts_of_a_call_are_tokenized_together(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch):
    texts, batches = ["the sea", "a stone in the west", "what a day"], []
    together = engine.tokenizer.encode_batch
    monkeypatch.setattr(engine.tokenizer, "encode_batch", lambda batch: batches.append(batch) or together(batch))
    ids = [engine.tokenizer.encode(text) for text in texts]
    assert engine.embed([texts[0], ids[1], texts[2]]) == engine.embed(ids)
    assert batches == [[texts[0], texts[2]]]


def test_the_prompt_that_does_not_fit_is_found_among_those_that_do(engine: LLMEngine):
    too_long = [5] * (engine.info.max_model_len + 1)
    with pytest.raises(InvalidRequestError, match=f"prompt has {len(too_long)} tokens"):
        engine.embed([[5], too_long, [6]])
    most = SamplingParams(max_tokens=engine.info.max_model_len - 4)
    with pytest.raises(InvalidRequestError, match="max_tokens is .* and the prompt has 5 tokens"):
        engine.generate([[5], [5] * 5, [6]], most, use_tqdm=False)
