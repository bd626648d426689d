"""Whatever an engine is sent in its own types, checked by nobody: every request ends, and no block is lost."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from atom_core import EngineArgs, SamplingParams, StructuredOutputParams, ThinkingBudget
from atom_core.engine.engine_core import EngineCore
from atom_core.engine.startup import resolve
from atom_core.messages import EngineOutput, EngineRequest, KVTransferParams, Pooling, PoolingKind
from atom_models import open_checkpoint
from block_accounting import check_blocks
from null_model import NullExecutor

NUM_BLOCKS, LONGEST = 24, 128
INTEGERS = [0, 1, -1, 2, 7, 20, 127, 128, 129, 4096, 2**31, -(2**31), 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "\0", "\ud800", "é\u202e", "x" * 3000]
GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[ab]{2,9}"},
    {"regex": "("},
    {"choice": []},
    {"choice": ["a", "b"]},
    {"json": {"type": "nothing"}},
    {},
    {"grammar": "root ::= root"},
    {"json_object": True, "regex": "a"},
]


class Fuzzer:
    """Draws requests that msgspec could have decoded: every field has its type, and any value of it."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._count = 0

    def request(self) -> EngineRequest:
        draw, self._count = self._draw, self._count + 1
        return EngineRequest(
            request_id=f"{self._count}{draw.choice(TEXTS)}",
            token_ids=self._tokens(draw.choice((0, 1, 5, 17, 40, 100, LONGEST, LONGEST + 1, 300))),
            sampling_params=self._params(),
            kind=draw.choice(("generate", "generate", "generate", "embed")),
            eos_token_ids=draw.choice(((), (4,), (-1, 2**40))),
            arrival_time=draw.choice(FLOATS),
            priority=draw.choice(INTEGERS),
            cache_salt=draw.choice(TEXTS),
            parent_id=draw.choice((None, "a", "b")),
            sample_index=draw.choice((0, 1, *INTEGERS)),
            pooling=Pooling(draw.choice(get_args(PoolingKind)), draw.choice((True, False))),
            tenant=draw.choice(TEXTS),
        )

    def ids(self, of: list[str]) -> list[str]:
        return [*self._draw.sample(of, min(len(of), 3)), "nobody"]

    def chance(self, share: float) -> bool:
        return self._draw.random() < share

    def _tokens(self, count: int) -> list[int]:
        if self.chance(0.2):
            return [self._draw.choice(INTEGERS) for _ in range(count)]
        return [1 + (count + index) % 2 for index in range(count)]  # many begin alike

    def _params(self) -> SamplingParams:
        draw = self._draw
        fields: dict[str, Any] = {"max_tokens": draw.choice((1, 3, 9, 30)), "n": 1, "seed": 0}
        for _ in range(draw.randrange(4)):
            name = draw.choice(SamplingParams.__struct_fields__)
            fields[name] = self._value(name)
        if self.chance(0.02):
            fields["structured_outputs"] = StructuredOutputParams(**draw.choice(GRAMMARS))
        return SamplingParams(**fields)

    def _value(self, name: str) -> Any:
        draw = self._draw
        if name == "structured_outputs":
            return None
        if name == "kv_transfer_params":
            return draw.choice((None, KVTransferParams(), KVTransferParams(do_remote_decode=True)))
        if name == "thinking_budget":
            return ThinkingBudget(draw.choice(INTEGERS), draw.choice(TEXTS), draw.choice(TEXTS))
        if name in ("stop_strings", "bad_words"):
            return draw.choice((None, [], TEXTS))
        if name == "bad_words_token_ids":
            return draw.choice((None, [], [[]], [INTEGERS]))
        if name == "logit_bias":
            return draw.choice((None, {}, dict(zip(INTEGERS, FLOATS, strict=False))))
        if name.endswith("token_ids"):
            return draw.choice((None, [], INTEGERS))
        if name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            return draw.choice((True, False))
        if name in ("temperature", "top_p", "min_p") or name.endswith("penalty"):
            return draw.choice(FLOATS)
        may_be_none = name in ("max_tokens", "seed", "logprobs", "prompt_logprobs")
        return draw.choice((*INTEGERS, *((None,) if may_be_none else ())))


class Ends:
    """What became of requests. Each has one end, and no news behind it."""

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        self.reasons: dict[str, int] = {}

    def take(self, news: list[EngineOutput]) -> None:
        for output in news:
            assert output.request_id in self.open
            if output.finish_reason is not None:
                del self.open[output.request_id]
                self.reasons[output.finish_reason] = self.reasons.get(output.finish_reason, 0) + 1


@pytest.fixture
def core(tiny_llama):
    args = EngineArgs(model=str(tiny_llama), num_threads=1, max_num_seqs=8, max_num_batched_tokens=64, block_size=16)
    config = resolve(args, open_checkpoint(tiny_llama))
    core = EngineCore(config, NullExecutor(NUM_BLOCKS, LONGEST))
    yield core
    core.close()


def run(core: EngineCore, num_requests: int, seed: int) -> dict[str, int]:
    """Send so many while others run, end some, and empty the engine; how often requests ended how."""
    fuzzer, ends = Fuzzer(seed), Ends()
    num_sent = 0
    while num_sent < num_requests or core.has_unfinished():
        while num_sent < num_requests and len(ends.open) < 24:
            request = fuzzer.request()
            ends.open[request.request_id] = None
            core.add_request(request)
            num_sent += 1
        if fuzzer.chance(0.05):
            core.abort(fuzzer.ids(list(ends.open)))
        if fuzzer.chance(0.01):
            core.reset_prefix_cache()
        ends.take(core.step())
        if fuzzer.chance(0.05):
            check_blocks(core._scheduler)
    assert ends.open == {}
    assert core.stats().num_free_blocks == NUM_BLOCKS
    return ends.reasons


def test_two_thousand_requests_of_any_values_end_and_lose_no_block(core):
    reasons = run(core, 2000, seed=1)
    assert set(reasons) == {"stop", "length", "abort", "error"}
    assert min(reasons.values()) > 20


@pytest.mark.slow
def test_50000_requests_of_any_values_end_and_lose_no_block(core):
    run(core, 50_000, seed=2)
