"""An engine that sleeps holds neither weights nor cache, and is the same when it wakes up."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch

from atom_core import EngineAsleepError, EngineBusyError, SamplingParams
from atom_core.worker.model.host_weights import HostWeights, tensors_of
from atom_core.worker.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
PROMPTS = [[5] * 40, [9, 8, 7]]


def tokens(engine):
    return [output["token_ids"] for output in engine.generate(PROMPTS, [GREEDY, SAMPLED])]


@pytest.mark.parametrize("level", [1, 2])
def test_tokens_after_waking_are_those_of_before_and_nothing_is_cached(make_engine, level):
    engine = make_engine()
    before = tokens(engine)
    for _ in range(2):
        engine.sleep(level)
        assert engine.is_sleeping
        engine.wake_up()
        assert not engine.is_sleeping
        assert engine.stats.num_free_blocks == engine.stats.num_blocks
        hits = engine.stats.prefix_cache_hits
        assert tokens(engine) == before
        assert engine.stats.prefix_cache_hits == hits


def test_a_compiled_model_with_graphs_wakes_up_too(make_engine):
    engine = make_engine(level=1)
    before = tokens(engine)
    for level in (1, 2):
        engine.sleep(level)
        engine.wake_up()
        assert tokens(engine) == before


def test_a_sleeping_engine_refuses_requests_in_words(make_engine):
    engine = make_engine()
    engine.sleep()
    with pytest.raises(EngineAsleepError, match=r"sleeps, and takes no request .*: call wake_up\(\)$"):
        engine.generate(PROMPTS, GREEDY)
    with pytest.raises(EngineAsleepError):
        engine.add_request([[5]], [GREEDY])
    with pytest.raises(EngineBusyError, match="sleeps already"):
        engine.sleep(2)
    assert not engine._core.prepare()


def test_an_engine_with_open_requests_does_not_fall_asleep(make_engine):
    engine = make_engine()
    request_ids = engine.add_request([[5]], [GREEDY])
    engine.step()
    with pytest.raises(EngineBusyError, match="requests are open: finish or abort them"):
        engine.sleep()
    engine.abort(request_ids)
    engine.sleep()
    with pytest.raises(ValueError, match="level is 3; it must be 1 or 2"):
        engine.sleep(3)


@pytest.mark.parametrize("level", [1, 2])
def test_what_a_sleeping_worker_holds(make_engine, level):
    runner: ModelRunner = make_engine()._core._executor._runner
    caches = [tensor.untyped_storage() for each in runner.running.model.cached.kv_caches.values() for tensor in each]
    weights = next(iter(tensors_of(runner._weights)))
    references = [torch.multiprocessing.reductions.StorageWeakRef(storage) for storage in caches]
    weight = torch.multiprocessing.reductions.StorageWeakRef(weights.untyped_storage())
    del caches, weights
    runner.sleep(level)
    gc.collect()
    assert all(reference.expired() for reference in references)
    assert weight.expired() == (level == 2)
    runner.wake_up()


def test_a_sleeping_worker_prepares_nothing_and_has_no_model_to_run(make_engine):
    runner: ModelRunner = make_engine()._core._executor._runner
    runner.sleep(2)
    assert not runner.is_preparing
    with pytest.raises(RuntimeError, match=r"no model to run: call load\(\) first, and wake_up\(\) after sleep\(\)"):
        runner.prepare()
    runner.wake_up()
    assert runner.prepare() is False


# Memory that leaves a device and comes back; here all devices are the host.


class Holder(torch.nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0))
        self.parts = parts


def closure_over(tensor):
    return lambda x: x + tensor


def test_tensors_are_found_in_attributes_containers_and_closures():
    kept = [torch.full((4,), float(number)) for number in range(5)]
    holder = Holder([kept[0]], {"a": (kept[1],)}, closure_over(kept[2]), partial(max, kept[3]), kept[4].add)
    found = {tensor.data_ptr() for tensor in tensors_of(holder)}
    assert found == {tensor.data_ptr() for tensor in [*kept, holder.weight]}


def test_the_memory_of_tensors_goes_and_comes_back_with_its_numbers():
    holder = Holder()
    view = holder.weight.data[2:4]
    gone = HostWeights(holder, lambda tensor: True)
    assert holder.weight.untyped_storage().nbytes() == 0
    assert gone.num_bytes == 24
    gone.restore()
    assert view.tolist() == [2.0, 3.0]
    assert holder.weight.tolist() == list(range(6))
    assert gone.num_bytes == 0


def test_on_a_host_weights_stay_where_they_are():
    holder = Holder()
    assert HostWeights(holder).num_bytes == 0
    assert holder.weight.untyped_storage().nbytes() == 24
