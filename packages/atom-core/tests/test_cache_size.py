"""How many blocks the KV cache gets, and the longest request that they let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_core.config import CacheConfig, CompileConfig, EngineConfig, ModelConfig, ParallelConfig, ProfilerConfig
from atom_core.config.devices import CPU
from atom_core.config.options import ConfigError
from atom_core.scheduler import SchedulerConfig
from atom_core.worker.cache.pages import CachePages, PageGroup
from atom_core.worker.cache.size import size_cache
from atom_kernels.protocols import CacheFormat, CacheLayout, CacheTensor, Pages, Slots
from fake_worker import pages

BLOCK_SIZE = 16


def make_size(
    *, max_model_len=512, given=False, memory=1 << 30, block_bytes=1024, windows=(None,), device="cpu", ranks=1, **cache
):
    """The size for four requests at once, in steps of 64 tokens; `cache` has further settings of the cache."""
    config = EngineConfig(
        model=ModelConfig("fake", Path("fake"), "FakeForCausalLM", "float32", max_model_len, given, 100, ()),
        cache=CacheConfig(BLOCK_SIZE, CacheFormat("float32"), True, "xxhash64", 0.9, **cache),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=max_model_len),
        parallel=ParallelConfig(1, tensor_parallel_size=ranks),
        compile=CompileConfig(),
        profiler=ProfilerConfig(),
        device=device,
    )
    page = CacheLayout("nhd", BLOCK_SIZE, (CacheTensor("all", (block_bytes,), "uint8"),))
    groups = tuple(PageGroup(spec, ()) for spec in pages(*windows))
    return size_cache(config, CachePages(groups, (page,), len(windows) * block_bytes // BLOCK_SIZE), memory)


def test_the_cache_on_a_cpu_is_what_the_requests_can_need_within_a_cap():
    assert make_size().num_blocks == 4 * 32
    assert make_size(block_bytes=1 << 26, memory=1 << 40).num_blocks == CPU.cache_cap >> 26
    assert make_size(block_bytes=1 << 20, memory=100 << 20).num_blocks == 90


def test_a_cache_that_was_asked_for_is_taken():
    assert make_size(num_blocks=77).num_blocks == 77
    assert make_size(memory_bytes=10 * 1024 + 5, given=False).num_blocks == 10


@pytest.mark.parametrize(
    ("name", "asked"), [("kv_cache_memory", {"memory_bytes": 1 << 40}), ("num_kv_blocks", {"num_blocks": 1 << 30})]
)
def test_more_than_the_machine_has_is_refused_by_name(name, asked):
    with pytest.raises(ConfigError, match=rf"{name} asks for 1024.0 GiB of KV cache, and 1.0 GiB"):
        make_size(memory=1 << 30, **asked)


def test_all_the_memory_there_is_may_be_asked_for():
    assert make_size(memory=1 << 30, memory_bytes=1 << 30).num_blocks == 1 << 20


def test_the_context_is_fitted_to_the_cache_unless_it_was_asked_for():
    fitted = make_size(num_blocks=4)
    assert fitted.max_model_len == 64
    assert any("max_model_len = 64" in line for line in fitted.choices)
    with pytest.raises(ConfigError, match="too small for one request"):
        make_size(num_blocks=4, given=True)
    with pytest.raises(ConfigError, match="too small for one request"):
        make_size(memory_bytes=100)


def test_the_cache_is_as_large_as_requests_and_their_windows_need():
    assert make_size(max_model_len=1024, windows=(None, 32)).num_blocks == 4 * (64 + 2 + 5)


def test_a_number_of_blocks_means_the_bytes_of_all_layers():
    assert make_size(max_model_len=1024, windows=(None, 32), num_blocks=100).num_blocks == 200


def test_the_longest_request_is_what_fits_behind_windows_too():
    assert make_size(max_model_len=1024, windows=(32,), num_blocks=7).max_model_len == 1024
    assert make_size(max_model_len=1024, windows=(None, 32), num_blocks=20).max_model_len == 33 * 16
    with pytest.raises(ConfigError, match="hold 528, max_model_len is 1024"):
        make_size(max_model_len=1024, windows=(None, 32), num_blocks=20, given=True)
    with pytest.raises(ConfigError, match="hold 528, max_model_len is 1024"):
        make_size(max_model_len=1024, windows=(None, 32), num_blocks=20, strict_memory=True)


def test_a_model_without_attention_layers_gets_the_blocks_that_its_requests_count():
    assert make_size(block_bytes=0).num_blocks == 4 * 32
    assert make_size(block_bytes=0, num_blocks=77).num_blocks == 77


def test_a_cache_that_holds_one_token_and_the_next_is_large_enough():
    size = make_size(max_model_len=2, num_blocks=1)
    assert (size.num_blocks, size.max_model_len) == (1, 2)


MIB = 1 << 20


def test_on_a_cpu_nine_tenths_of_the_memory_up_to_two_gib_are_shared_by_the_ranks():
    assert CPU.cache_cap == 2 << 30
    assert make_size(block_bytes=64 * MIB, memory=1 << 40, max_model_len=1 << 20).num_blocks == 32
    assert make_size(block_bytes=64 * MIB, memory=1 << 40, max_model_len=1 << 20, ranks=2).num_blocks == 16
    assert make_size(block_bytes=MIB, memory=100 * MIB, max_model_len=1 << 20).num_blocks == 90
    # What a GPU has left was measured, and is nobody else's.
    assert make_size(block_bytes=64 * MIB, memory=10 << 30, max_model_len=1 << 20, device="cuda").num_blocks == 160
    assert make_size(device="cuda").num_blocks == 4 * 32


def test_what_was_chosen_is_told_in_a_line_each():
    assert make_size(block_bytes=MIB).choices == (
        "num_kv_blocks = 128 (0.12 GiB, 2048 tokens): what 4 requests can need, within 2 GiB",
    )
    assert make_size(block_bytes=MIB, ranks=2).choices[0].endswith("within 1 GiB")
    assert make_size(block_bytes=MIB, device="cuda").choices == (
        "num_kv_blocks = 128 (0.12 GiB, 2048 tokens): the memory left",
    )
    assert make_size(block_bytes=MIB, max_model_len=1024, windows=(None, 32)).choices == (
        "num_kv_blocks = 284 (0.28 GiB, 2272 tokens in 2 groups of layers, more behind windows): "
        "what 4 requests can need, within 2 GiB",
    )
    assert make_size(num_blocks=77).choices == ()
    assert make_size(num_blocks=4).choices == (
        "max_model_len = 64: the most that the KV cache can hold (the model takes 512)",
    )
    assert make_size(num_blocks=32).choices == ()


def test_a_cache_that_is_too_small_says_what_a_request_takes():
    told = (
        "the KV cache is too small for one request: 4 blocks of 16 tokens hold 64, max_model_len is 512 and takes "
        "32.0 MiB: give more kv_cache_memory or num_kv_blocks, or a smaller max_model_len"
    )
    for asked in ({"given": True}, {"strict_memory": True}):
        with pytest.raises(ConfigError) as caught:
            make_size(num_blocks=4, block_bytes=MIB, **asked)
        assert str(caught.value) == told
        assert make_size(num_blocks=32, block_bytes=MIB, **asked).max_model_len == 512
    with pytest.raises(ConfigError, match="0 blocks of 16 tokens hold 0"):
        make_size(memory_bytes=1023)
    assert make_size(memory_bytes=1024).max_model_len == 16


def test_states_of_requests_take_half_of_the_memory_at_most():
    for memory, num_slots in ((80_000, 4), (79_999, 3), (60_000, 3)):
        size = make_size_with_states(memory=1 << 30, memory_bytes=memory, slot_bytes=10_000, finds_prefixes=False)
        assert (size.num_slots, size.num_blocks) == (num_slots, (memory - num_slots * 10_000) // 1024)
    few = make_size_with_states(memory=1 << 30, memory_bytes=59_999, slot_bytes=10_000, finds_prefixes=False)
    assert (few.num_slots, few.num_snapshots, few.num_blocks) == (2, 0, (59_999 - 20_000) // 1024)
    with pytest.raises(ConfigError) as caught:
        make_size_with_states(memory=1 << 30, memory_bytes=2 * MIB - 1, slot_bytes=MIB)
    assert str(caught.value) == (
        "the KV cache is too small: the states of one request take 1.0 MiB, and may take half of 2.0 MiB: "
        "give more memory"
    )


def test_what_was_chosen_for_states_is_told_too():
    size = make_size_with_states(memory=1 << 40, slot_bytes=MIB)
    assert size.choices[1:] == (
        "num_slots = 4 (0.00 GiB): states of as many requests, within half of the memory",
        "num_snapshots = 12 (0.01 GiB): states behind cached prefixes, within a quarter of the memory",
    )
    none = make_size_with_states(memory=1 << 30, memory_bytes=40 * MIB, slot_bytes=11 * MIB)
    assert none.choices[-1] == "num_snapshots = 0 (0.00 GiB): no prefix is found, within a quarter of the memory"
    assert len(make_size_with_states(memory=1 << 40, slot_bytes=MIB, finds_prefixes=False).choices) == 2


def test_a_request_has_a_state_for_each_draft_in_half_of_the_memory():
    for memory, num_requests in ((240_000, 4), (239_999, 3), (60_000, 1)):
        size = make_size_with_states(memory=1 << 30, memory_bytes=memory, slot_bytes=10_000, slots_each=3)
        assert size.num_slots == 3 * num_requests
        # A snapshot is one state.
        assert size.num_snapshots == min(memory // 4 // 10_000, 12)
    told = make_size_with_states(memory=1 << 40, slot_bytes=MIB, slots_each=3).choices[1]
    assert told.startswith("num_slots = 12 (0.01 GiB): states of 4 requests, one and one for each draft, within half")
    with pytest.raises(ConfigError, match="one request take 3.0 MiB.*give more memory or propose fewer drafts"):
        make_size_with_states(memory=1 << 30, memory_bytes=6 * MIB - 1, slot_bytes=MIB, slots_each=3)


def make_size_with_states(*, memory: int, slot_bytes: int, finds_prefixes: bool = True, slots_each: int = 1, **cache):
    """The size for four requests of 512 tokens, each with `slots_each` states of `slot_bytes` beside its blocks."""
    config = EngineConfig(
        model=ModelConfig("fake", Path("fake"), "FakeForCausalLM", "float32", 512, False, 100, ()),
        cache=CacheConfig(BLOCK_SIZE, CacheFormat("float32"), finds_prefixes, "xxhash64", 0.9, **cache),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512),
        parallel=ParallelConfig(1),
        compile=CompileConfig(),
        profiler=ProfilerConfig(),
        device="cpu",
    )
    page = CacheLayout("nhd", BLOCK_SIZE, (CacheTensor("all", (1024,), "uint8"),))
    groups = (PageGroup(Pages(), ()), PageGroup(Slots(slots_each), ()))
    return size_cache(config, CachePages(groups, (page,), 64, slot_bytes), memory)


def test_states_of_prefixes_take_a_quarter_of_the_memory_at_most():
    size = make_size_with_states(memory=1 << 30, memory_bytes=100_000, slot_bytes=10_000)
    assert (size.num_slots, size.num_snapshots) == (4, 2)
    assert size.num_blocks == (100_000 - 6 * 10_000) // 1024
    assert any("num_snapshots = 2" in line for line in size.choices)
    assert make_size_with_states(memory=1 << 30, memory_bytes=100_000, slot_bytes=30_000).num_snapshots == 0


def test_there_are_no_more_states_of_prefixes_than_the_requests_can_leave():
    # Behind 192 and 384 tokens, and one before the end.
    assert make_size_with_states(memory=1 << 30, slot_bytes=1000).num_snapshots == 4 * 3
    assert make_size_with_states(memory=1 << 30, slot_bytes=1000, finds_prefixes=False).num_snapshots == 0


def test_states_of_prefixes_take_nothing_that_blocks_and_requests_asked_for():
    size = make_size_with_states(memory=16 * 1024 + 4 * 1000 + 9000, num_blocks=16, slot_bytes=1000)
    assert (size.num_blocks, size.num_slots, size.num_snapshots) == (16, 4, 2)
