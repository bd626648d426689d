"""The numbers that scheduling goes by: settings and their bounds, what a request may be, what steps cost."""

from __future__ import annotations

import logging
import math

import pytest

from atom_core.kv_cache import BlockTable, KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import SchedulerConfig
from atom_core.scheduler.admission_delay import AdmissionDelay
from atom_core.scheduler.limits import max_output_tokens, refusal
from atom_core.scheduler.request import Request
from atom_core.scheduler.tenant import OUTPUT_COST, Tenant
from atom_core.speculation import DraftStatistics, Speculation, SpeculationConfig
from atom_core.speculation.costs import StepCosts, _size_of
from atom_core.speculation.factory import make_speculation
from atom_kernels.protocols import Pages, Slots
from clock import Clock

SIZES = {"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 64}
BLOCKS = {"num_blocks": 8, "block_size": 4}


# Settings.


def test_settings_have_these_defaults():
    config = SchedulerConfig(**SIZES)
    assert (config.long_prefill_share, config.async_scheduling, config.scheduler_delay_factor) == (0.5, True, 0.0)
    assert (config.policy, config.priority_ageing) == ("priority", 10.0)
    cache = KVCacheConfig(**BLOCKS)
    assert (cache.enable_prefix_caching, cache.prefix_hash, cache.groups) == (True, "xxhash64", (Pages(),))
    assert (cache.names_cover_next, cache.num_slots, cache.num_snapshots) == (False, 0, 0)
    drafts = SpeculationConfig()
    assert (drafts.method, drafts.num_tokens, drafts.adaptive, drafts.model) == ("ngram", 1, True, None)
    assert (drafts.prompt_lookup_min, drafts.prompt_lookup_max) == (2, 5)


@pytest.mark.parametrize(
    ("config", "allowed", "refused", "message"),
    [
        *[(SchedulerConfig, {name: 1}, {name: 0}, f"{name} is 0; it must be at least 1") for name in SIZES],
        *[
            (SchedulerConfig, {"long_prefill_share": good}, {"long_prefill_share": bad}, told)
            for good, bad, told in (
                (1.0, 1.01, "long_prefill_share is 1.01; it must be above 0 and at most 1"),
                (1e-9, 0.0, "long_prefill_share is 0.0; it must be above 0 and at most 1"),
                (0.5, math.nan, "long_prefill_share is nan; it must be above 0 and at most 1"),
            )
        ],
        *[
            (SchedulerConfig, {name: 0.0}, {name: bad}, f"{name} is {bad}; it must be at least 0")
            for name in ("scheduler_delay_factor", "priority_ageing")
            for bad in (-0.1, math.nan)
        ],
        (SchedulerConfig, {"policy": "fcfs"}, {"policy": "x"}, "policy is 'x'; allowed are 'priority' and 'fcfs'"),
        *[(KVCacheConfig, {name: 1}, {name: 0}, f"{name} is 0; it must be at least 1") for name in BLOCKS],
        (
            KVCacheConfig,
            {"prefix_hash": "sha256"},
            {"prefix_hash": "md5"},
            "prefix_hash is 'md5'; allowed are 'xxhash64' and 'sha256'",
        ),
        (
            KVCacheConfig,
            {"groups": (Pages(4),)},
            {"groups": ()},
            "groups are empty; give what each group of layers keeps",
        ),
        (
            KVCacheConfig,
            {"groups": (Slots(),), "num_slots": 1, "num_snapshots": 1},
            {"groups": (Slots(),), "num_slots": 0, "num_snapshots": 1},
            "num_slots is 0; a group that keeps states needs at least 1",
        ),
        (
            KVCacheConfig,
            {"groups": (Slots(),), "num_slots": 1, "enable_prefix_caching": False},
            {"groups": (Slots(),), "num_slots": 1},
            "num_snapshots is 0; to find prefixes, a group that keeps states needs at least 1: give some, or set "
            "enable_prefix_caching to false",
        ),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_setting_outside_of_its_range_is_told(config, allowed, refused, message):
    sizes = SIZES if config is SchedulerConfig else BLOCKS
    config(**sizes | allowed)
    with pytest.raises(ValueError) as caught:
        config(**sizes | refused)
    assert str(caught.value) == message


def test_steps_end_where_every_group_can_hand_over():
    assert KVCacheConfig(**BLOCKS).hand_over == 1
    assert not KVCacheConfig(**BLOCKS).has_slots
    mixed = KVCacheConfig(**BLOCKS, groups=(Pages(), Slots()), num_slots=1, num_snapshots=1)
    assert mixed.has_slots
    assert mixed.hand_over == Slots.hand_over == 64


def test_a_step_samples_256_tokens_with_drafts_or_those_of_sixteen_requests():
    config = SpeculationConfig(num_tokens=3)
    assert [config.max_num_samples(n) for n in (1, 17, 64, 65, 257)] == [4, 68, 256, 260, 512]
    many = SpeculationConfig(num_tokens=31)
    assert [many.max_num_samples(n) for n in (1, 16, 17)] == [32, 512, 512]
    assert [
        SpeculationConfig(method=method).is_by_model for method in ("ngram", "suffix", "mtp", "eagle", "eagle3")
    ] == [*[False, False, True, True, True]]


# Requests.


def make_request(num_tokens: int, *, kind="generate", **params) -> EngineRequest:
    return EngineRequest("a", [5] * num_tokens, SamplingParams(**params), kind=kind)


def test_what_a_request_leaves_open_is_the_rest_of_the_context():
    config = SchedulerConfig(**SIZES)
    assert max_output_tokens(make_request(60, max_tokens=None), config) == 4
    assert max_output_tokens(make_request(64, max_tokens=None), config) == 1
    assert max_output_tokens(make_request(5, max_tokens=7), config) == 7
    assert max_output_tokens(make_request(5, max_tokens=7, kind="embed"), config) == 0


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "told"),
    [
        (1, 32, None),
        (0, 1, "the prompt is empty; give at least one token"),
        (1, -1, "max_tokens is -1; it must not be negative"),
        (
            60,
            5,
            "the prompt has 60 tokens and up to 5 are to be generated; together they must not exceed max_model_len = "
            "64: shorten the prompt or lower max_tokens",
        ),
        (30, 3, None),
        (
            30,
            4,
            "a prompt of 30 tokens with up to 4 to generate takes 9 blocks of the KV cache, which has 8: lower "
            "max_tokens, or give the cache more memory",
        ),
        (32, 0, None),
        (
            33,
            0,
            "a prompt of 33 tokens with up to 0 to generate takes 9 blocks of the KV cache, which has 8: lower "
            "max_tokens, or give the cache more memory",
        ),
    ],
)
def test_a_request_that_could_never_run_is_told_why(num_tokens, max_tokens, told):
    found = refusal(make_request(num_tokens, max_tokens=max_tokens), SchedulerConfig(**SIZES), KVCacheConfig(**BLOCKS))
    assert found == told
    whole = KVCacheConfig(num_blocks=99, block_size=4)
    assert refusal(make_request(60, max_tokens=4), SchedulerConfig(**SIZES), whole) is None


def arrived(at: float) -> Request:
    return Request(make_request(3), key=(0.0, 1), arrival=at, max_tokens=1, block_table=BlockTable([]))


def test_a_newcomer_waits_for_a_share_of_the_last_step_that_began_one():
    clock = Clock()
    delay = AdmissionDelay(0.5, clock)
    head = arrived(0.0)
    assert not delay.is_over(head, is_idle=False)  # no longer than no step
    clock.now = 1.0
    assert delay.is_over(head, is_idle=False)
    delay.admitted()
    clock.now = 11.0  # that step took 10 seconds
    late = arrived(7.0)
    assert not delay.is_over(late, is_idle=False)
    assert delay.is_over(late, is_idle=True)
    assert delay.is_over(None, is_idle=False)
    clock.now = 12.0
    assert not delay.is_over(late, is_idle=False)  # just as long is not longer
    clock.now = 12.1
    assert delay.is_over(late, is_idle=False)


def test_a_tenant_pays_twice_for_output():
    tenant = Tenant("t")
    assert (tenant.served, tenant.num_requests, OUTPUT_COST) == (0.0, 0, 2)
    tenant.pay_prompt(5)
    tenant.pay_output(3)
    assert tenant.served == 11


# Costs.


def taken(*steps: tuple[int, float], times: int = 3, num_next_drafts: int = 0) -> StepCosts:
    costs = StepCosts()
    for num_tokens, seconds in steps:
        for _ in range(times):
            costs.take(num_tokens, seconds, num_next_drafts)
    return costs


def test_sizes_that_fall_together_are_an_eighth_apart():
    assert [_size_of(n) for n in (1, 7, 8, 9, 15, 16, 17, 18, 31, 32, 33, 36, 100)] == [
        *[1, 7, 8, 9, 15, 16, 18, 18, 32, 32, 36, 36, 104]
    ]


def test_a_step_costs_what_was_measured_between_and_beyond():
    assert StepCosts().seconds(5) == 1.0
    costs = taken((4, 1.0), (8, 3.0))
    assert [costs.seconds(n) for n in (1, 4, 5, 8)] == [1.0, 1.0, 1.5, 3.0]
    assert costs.seconds(10) == pytest.approx(3.0 * 1.02 + 2 * 0.5)
    assert taken((4, 2.0)).seconds(14) == pytest.approx(2.0 * 1.08)  # beyond eight tokens more nothing is added
    assert taken((4, 3.0), (8, 1.0)).seconds(10) == pytest.approx(1.0 * 1.02)  # more tokens never cost less
    assert taken((4, 2.0)).seconds(4, 2) == pytest.approx(2.0 + 2 * 0.05 * 2.0)
    drafts = taken((4, 5.0), num_next_drafts=1)
    assert (drafts.seconds(4, 1), drafts.seconds(4)) == (5.0, 1.0)
    # Few tokens are not taken to cost what many do, if drafts are made behind them.
    assert (drafts.seconds(3, 1), drafts.seconds(2, 1)) == (5.0, 1.05)


def test_a_size_is_believed_once_it_was_measured_three_times():
    assert not taken((4, 1.0), times=2).are_known(4)
    costs = taken((6, 1.0))
    assert [costs.are_known(n) for n in (5, 6, 8, 9)] == [False, True, True, False]
    assert not taken((6, 1.0), num_next_drafts=1).are_known(6)
    costs = StepCosts()
    for seconds in (9.0, 4.0, 6.0, 5.0, 100.0):
        costs.take(4, seconds)
    # The two quickest of five steps count.
    assert costs.seconds(4) == pytest.approx((4.0 + 5.0) / 2)
    costs.take(4, 0.0)
    costs.take(4, -1.0)
    assert costs.seconds(4) == pytest.approx(4.5)


def test_what_was_not_measured_for_512_steps_is_forgotten():
    costs = taken((4, 1.0))
    for _ in range(512):
        costs.take(8, 2.0)
    assert costs.seconds(4) == 1.0
    costs.take(8, 2.0)
    assert costs.seconds(4) == 2.0
    costs.take(4, 7.0)
    assert costs._measured[0][4].count == 1


def test_drafts_are_counted_and_told_every_thousand(caplog):
    statistics = DraftStatistics(2)
    assert (statistics.num_drafts, statistics.total_draft_tokens, statistics.acceptance_rate) == (0, 0, 0.0)
    with caplog.at_level(logging.INFO):
        for _ in range(499):
            statistics.take(2, 1)
        assert not caplog.records
        statistics.take(2, 2)
    told = "speculation: 501 of 1000 draft tokens accepted (50.10%), by position 1.00 0.00"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert statistics.accepted_by_position == [500, 1]
    assert statistics.acceptance_rate == 0.501


def test_an_engine_speculates_as_its_settings_say():
    assert make_speculation(None) is None
    by_text = make_speculation(SpeculationConfig(num_tokens=2, prompt_lookup_min=1, prompt_lookup_max=3))
    assert isinstance(by_text, Speculation)
    assert make_speculation(SpeculationConfig(method="mtp")) is not None
