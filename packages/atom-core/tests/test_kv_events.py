"""Routers that subscribe to events know at every time what the prefix cache holds, and by which tokens."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from atom_core import EngineArgs, SamplingParams
from atom_core.config import ConfigError
from atom_core.config.kv_events import read_kv_events
from atom_core.kv_cache import KVCacheConfig
from atom_core.kv_cache.elsewhere.offload import OffloadedBlocks
from atom_core.kv_events import KVEventPublisher
from atom_core.kv_events.config import address_of
from atom_core.kv_events.recorder import number_of
from atom_core.kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_kernels.protocols import Pages
from fake_elsewhere import let_offload
from fake_worker import FakeEngine
from scheduled_requests import make_request

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


# What a router reads: the structs of vLLM 0.26, under names of their own.


class Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class Router:
    """Rebuilds what is cached: by group and name, all tokens from the beginning of the prompt."""

    def __init__(self) -> None:
        self.cached: dict[tuple[int | None, int], tuple[int, ...]] = {}
        self._known: dict[int, tuple[int, ...]] = {}

    def take(self, batch: bytes) -> None:
        for event in msgspec.msgpack.decode(batch, type=Batch).events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    for name in event.block_hashes:
                        del self.cached[event.group_idx, name]
                case Cleared():
                    self.cached.clear()

    def _store(self, event: Stored) -> None:
        size = event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert event.extra_keys is None or len(event.extra_keys) == len(event.block_hashes)
        prefix = () if event.parent_block_hash is None else self._known[event.parent_block_hash]
        for index, name in enumerate(event.block_hashes):
            prefix += tuple(event.token_ids[index * size : (index + 1) * size])
            assert (event.group_idx, name) not in self.cached
            self.cached[event.group_idx, name] = self._known[name] = prefix


def cached_in(cache):
    """The same of the cache itself."""
    found = {}
    for prefix in cache._prefixes._by_hash.values():
        if prefix.is_orphan:
            continue
        tokens, at = (), prefix
        while not isinstance(at, str):
            own = np.frombuffer(at.covered, "<i8", count=cache.config.block_size)
            tokens, at = (*own.tolist(), *tokens), at.parent
        for group, block_id in enumerate(prefix.block_ids):
            if block_id is not None:
                found[group, number_of(prefix.hash)] = tokens
    return found


@pytest.mark.parametrize("groups", [(Pages(),), (Pages(), Pages(window=12)), (Pages(window=8),)])
@pytest.mark.parametrize("names_cover_next", [False, True])
@pytest.mark.parametrize("offloads", [False, True])
def test_a_router_knows_what_is_cached_after_every_step_of_a_crowd(groups, names_cover_next, offloads):
    numbers = random.Random(7)
    config = KVCacheConfig(
        num_blocks=24,
        block_size=4,
        groups=groups,
        tells_events=True,
        names_cover_next=names_cover_next,
        prefix_hash="sha256" if offloads else "xxhash64",
    )
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=48)
    elsewhere = OffloadedBlocks(24) if offloads else None
    scheduler, router = Scheduler(limits, config, elsewhere=elsewhere), Router()
    engine = FakeEngine(scheduler, 24, 4, windows=[group.window for group in groups])
    let_offload(engine)
    num_removed = 0
    for number in range(40):
        prompt = [1] * numbers.choice((4, 8, 9)) + [numbers.randrange(3) for _ in range(numbers.randrange(1, 20))]
        engine.add(make_request(str(number), token_ids=prompt, max_tokens=6, cache_salt=numbers.choice(("", "a"))))
        for _ in range(numbers.randrange(4)):
            if scheduler.has_unfinished():
                engine.step()
        if number == 20:
            scheduler.forget_prefixes()
        events = scheduler.take_cache_events()
        num_removed += sum(not isinstance(event, BlockStored) for event in events)
        router.take(msgspec.msgpack.encode((0.0, events, 0)))
        assert router.cached == cached_in(scheduler._cache)
    assert num_removed > 10
    assert elsewhere is None or elsewhere.stats().num_loaded_from_memory > 0


def test_nothing_is_recorded_where_nobody_asked():
    config = KVCacheConfig(num_blocks=8, block_size=4)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=32), config)
    engine = FakeEngine(scheduler, 8, 4)
    engine.add(make_request("a", 9, max_tokens=2))
    engine.run()
    assert scheduler.take_cache_events() == []
    assert scheduler._cache._events is None


# Over ZMQ.


@contextlib.contextmanager
def subscribed(address, topic=b"kv", kind=zmq.SUB):
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        if kind == zmq.SUB:
            socket.subscribe(topic)
        socket.connect(address)
        yield socket


@pytest.fixture
def config(tmp_path):
    fields = {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replay", "topic": "kv"}
    return {"enable_kv_cache_events": True, **fields}


def missed_since(socket, first):
    """The batches that are sent again, by number."""
    socket.send_multipart((b"", first.to_bytes(8, "big")))
    while True:
        _, number, *batch = socket.recv_multipart()
        if number == (-1).to_bytes(8, "big", signed=True):
            return
        yield int.from_bytes(number, "big"), batch[0]


def test_a_subscriber_of_an_engine_rebuilds_what_it_caches_and_gets_what_it_missed(make_engine, config):
    engine = make_engine(kv_events_config=config, num_kv_blocks=8, max_model_len=96)
    cache, router, expected = engine._core._scheduler._cache, Router(), 0
    engine.generate([[3] * 40], GREEDY, use_tqdm=False)  # nobody listens yet
    with subscribed(config["endpoint"]) as events, subscribed(config["replay_endpoint"], kind=zmq.DEALER) as replay:
        for number, batch in missed_since(replay, 0):
            assert number == expected
            router.take(batch)
            expected += 1
        assert router.cached == cached_in(cache) != {}
        while not events.poll(50):  # a subscription takes a moment to arrive
            engine.reset_prefix_cache()
        for first in range(6):
            engine.generate([[first] * 40], GREEDY, use_tqdm=False)
        engine.reset_prefix_cache()
        engine.generate([[9] * 40], GREEDY, use_tqdm=False)
        router = Router()
        for _, batch in missed_since(replay, expected):
            router.take(batch)
        assert router.cached == cached_in(cache) != {}
        last = engine._core._publisher._number - 1
        told = Router()
        while True:
            topic, number, batch = events.recv_multipart()
            assert topic == b"kv"
            told.take(batch)
            if int.from_bytes(number, "big") == last:
                break
        assert told.cached == router.cached


def test_events_have_the_names_and_fields_of_vllm_and_leave_out_what_none_has():
    stored = BlockStored([7], None, [1, 2], 2)
    full = BlockStored([7], 6, [1, 2], 2, None, "GPU", None, [("salt",)], 1, "sliding_window", 16)
    batch = KVEventBatch(1.5, [stored, full, BlockRemoved([7]), BlockRemoved([7], group_idx=1), AllBlocksCleared()], 3)
    always = {"type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2], "block_size": 2} | {
        "lora_id": None, "medium": "GPU", "lora_name": None
    }  # fmt: skip
    layers = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 16}
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) == [
        1.5,
        [
            always | {"parent_block_hash": None},
            always | {"parent_block_hash": 6, "extra_keys": [["salt"]]} | layers,
            removed,
            removed | {"group_idx": 1},
            {"type": "AllBlocksCleared"},
        ],
        3,
    ]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(KVEventBatch(1.5, []))) == [1.5, [], None]


def test_addresses_count_up_by_engine():
    assert address_of("tcp://*:5557", 0) == "tcp://*:5557"
    assert address_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert address_of("ipc:///run/kv", 1) == "ipc:///run/kv_dp1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_kv_cache_events": True}, "kv_events_config has no endpoint: give one"),
        ({"enable_kv_cache_events": True, "endpoint": "udp://x:1"}, "has endpoint 'udp://x:1'"),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://*"}, "has endpoint 'tcp://\\*'"),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://*:1", "replay_endpoint": "x"}, "has replay_endpoint 'x'"),
        ({"publisher": "kafka"}, "has the publisher 'kafka'; allowed are 'zmq' and 'null'"),
        ({"hwm": 0}, "has hwm 0; it must be from 1"),
        ({"max_queue_size": 5}, "it may have enable_kv_cache_events, publisher, endpoint"),
        ({"enable_kv_cache_events": "yes"}, "Expected `bool`"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, message):
    with pytest.raises(ConfigError, match=message):
        EngineArgs(kv_events_config=given)


def test_events_are_off_unless_asked_for():
    assert read_kv_events(None) is None
    assert read_kv_events({"publisher": "zmq", "endpoint": "tcp://*:5557"}) is None
    assert read_kv_events({"enable_kv_cache_events": True, "publisher": "null"}) is None


def test_without_a_prefix_cache_there_is_nothing_to_tell(config):
    with pytest.raises(ConfigError, match="leave enable_prefix_caching on"):
        EngineArgs(kv_events_config=config, enable_prefix_caching=False)


def test_an_address_that_is_taken_ends_the_start_in_a_line(config):
    first = KVEventPublisher(read_kv_events({**config, "endpoint": "tcp://127.0.0.1:0"}))
    address = first._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
    with pytest.raises(OSError, match="tcp://127.0.0.1:.* cannot be used: Address already in use"):
        KVEventPublisher(read_kv_events({**config, "replay_endpoint": None, "endpoint": address}))
    first.close()


def test_a_publisher_without_events_sends_nothing(config):
    publisher = KVEventPublisher(read_kv_events(config))
    publisher.publish([])
    assert publisher._number == 0
    publisher.publish([AllBlocksCleared()])
    assert publisher._number == 1
    publisher.close()
