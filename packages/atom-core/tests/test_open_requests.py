"""What is open of many requests: it ends in linear time, one fault ends one sample, and news come in short slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest

from atom_core import SamplingParams
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.validation import RequestLimits
from atom_core.engine.outputs.open_requests import OpenRequests
from atom_core.engine.outputs.output_processor import OutputProcessor
from atom_core.engine.outputs.request_stream import MAX_NEWS_IN_A_ROW
from atom_core.engine.process.news_slices import MAX_NUMBERS, MAX_OUTPUTS, slices_of
from atom_core.engine.process.wire import ENCODER, AddRequests
from atom_core.garbage import no_collection
from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineOutput, Submission, TokenLogprobs
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.tokenization import Tokenizer

PARAMS = SamplingParams(max_tokens=8)


def make_inputs() -> InputProcessor:
    return InputProcessor(RequestLimits(max_model_len=512, vocab_size=1000, max_num_seqs=8192), eos_token_ids=[2])


def make_submission(num_prompts: int = 1, *, n: int = 1, num_prompt_tokens: int = 2) -> Submission:
    params = msgspec.structs.replace(PARAMS, n=n)
    return make_inputs().process([[5] * num_prompt_tokens] * num_prompts, params)


def make_output(request_id: str, token_ids: list[int], num_prompt_logprobs: int = 0) -> EngineOutput:
    entries = [TokenLogprobs(place, -1.0, 1, [(7, -1.5)] * 20) for place in range(num_prompt_logprobs)]
    return EngineOutput(request_id, token_ids, prompt_logprobs=entries or None)


def cpu_seconds(work: Callable[[], object]) -> float:
    """What a call costs this thread, whatever else the machine does."""
    with no_collection():  # it would go through what other tests left
        started = time.thread_time()
        work()
        return time.thread_time() - started


def assert_is_linear(prepare: Callable[[int], Callable[[], object]]) -> None:
    """16 times as much costs about 16 times as much; walking through all that is open would cost 256 times.

    A noisy machine may spoil a few comparisons. It cannot make quadratic work look linear.
    """
    ratios = []
    while not ratios or (min(ratios) > 64 and len(ratios) < 5):
        few = min(cpu_seconds(prepare(500)) for _ in range(3))
        ratios.append(cpu_seconds(prepare(8000)) / few)
    assert min(ratios) < 64


def closing_streams(count: int):
    """Streams of one prompt each, closed one by one."""
    inputs, opened = make_inputs(), OpenRequests(None, lambda ids: None)

    async def work() -> Callable[[], object]:
        streams = [opened.add(inputs.process([[5]], PARAMS)) for _ in range(count)]

        def close() -> None:
            for stream in streams:
                with pytest.raises(StopIteration):
                    stream.aclose().send(None)

        return close

    return asyncio.run(work())


def closing_one_stream(count: int):
    """A stream of many prompts."""
    opened = OpenRequests(None, lambda ids: None)

    async def work() -> Callable[[], object]:
        stream = opened.add(make_submission(count))
        return lambda: asyncio.run(stream.aclose())

    return asyncio.run(work())


def make_scheduler(submission: Submission) -> tuple[Scheduler, list[str]]:
    config = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=512)
    scheduler = Scheduler(config, KVCacheConfig(num_blocks=4096, block_size=16))
    samples = list(submission.samples())
    for sample in samples:
        scheduler.add_request(sample)
    scheduler.schedule()
    return scheduler, [sample.request_id for sample in samples]


def aborting_prompts(count: int):
    """Requests in the scheduler, 64 of which run."""
    scheduler, ids = make_scheduler(make_submission(count))
    return lambda: scheduler.abort(ids)


def aborting_from_the_last(count: int):
    scheduler, ids = make_scheduler(make_submission(count))
    return lambda: [scheduler.abort([request_id]) for request_id in reversed(ids)]


def aborting_siblings(count: int):
    """Samples of one prompt that wait for the first one."""
    scheduler, ids = make_scheduler(make_submission(n=count, num_prompt_tokens=40))
    return lambda: scheduler.abort(ids)


@pytest.mark.parametrize(
    "prepare", [closing_streams, closing_one_stream, aborting_prompts, aborting_from_the_last, aborting_siblings]
)
def test_ending_many_requests_takes_time_in_proportion(prepare):
    assert_is_linear(prepare)


async def test_closing_a_stream_of_many_prompts_is_one_abort():
    aborts: list[list[str]] = []
    opened = OpenRequests(None, aborts.append)
    submission = make_submission(3, n=2)
    stream = opened.add(submission)
    await stream.aclose()
    assert aborts == [[sample.request_id for sample in submission.samples()]]
    assert opened.num_samples == 0
    await stream.aclose()
    assert len(aborts) == 1


async def test_a_dropped_stream_is_aborted():
    aborts: list[list[str]] = []
    opened = OpenRequests(None, aborts.append)
    stream = opened.add(make_submission())
    del stream
    await asyncio.sleep(0)
    assert len(aborts) == 1


async def test_whoever_reads_much_news_lets_others_have_their_turn():
    opened = OpenRequests(None, lambda ids: None)
    submission = make_submission()
    stream = opened.add(submission)
    [prompt] = submission.prompts
    opened.take([make_output(prompt.request_id, [5]) for _ in range(10 * MAX_NEWS_IN_A_ROW)])
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    for _ in range(10 * MAX_NEWS_IN_A_ROW):
        await anext(stream)
    assert turns >= 9
    other.cancel()


async def test_news_that_are_there_come_together_a_few_at_most_and_none_after_the_last():
    opened = OpenRequests(None, lambda ids: None)
    stream = opened.add(make_inputs_of("a"))
    news = [make_output(stream.request_ids[0], [token]) for token in range(MAX_NEWS_IN_A_ROW + 2)]
    opened.take(news)
    first = [output.output_tokens for output in await stream.together()]
    assert first == [[token] for token in range(MAX_NEWS_IN_A_ROW)]
    assert [output.output_tokens for output in await stream.together()] == [
        [MAX_NEWS_IN_A_ROW],
        [MAX_NEWS_IN_A_ROW + 1],
    ]
    waiting = asyncio.ensure_future(stream.together())
    await asyncio.sleep(0)
    assert not waiting.done()
    opened.take([msgspec.structs.replace(news[0], finish_reason="length")])
    assert [output.finished for output in await waiting] == [True]
    assert await stream.together() == []


def test_what_crosses_to_the_engine_holds_each_prompt_and_the_parameters_once():
    params = SamplingParams(max_tokens=8, n=64, allowed_token_ids=list(range(900)))
    submission = make_inputs().process([[5] * 400] * 10, params)
    assert len(ENCODER.encode(AddRequests(submission))) < 10_000
    samples = list(submission.samples())
    assert len(samples) == 640
    assert len({id(sample.token_ids) for sample in samples}) == 10


def test_a_fault_in_one_samples_news_ends_that_sample_with_an_error_and_no_other(tiny_llama):
    processor = OutputProcessor(Tokenizer.from_folder(tiny_llama))
    submission = make_submission(2)
    for sample in submission.samples():
        processor.add(sample)
    bad, good = (prompt.request_id for prompt in submission.prompts)
    impossible = 2**40  # no token id: the tokenizer takes 32 bits
    logprobs = [TokenLogprobs(impossible, -1.0, 1, [])]
    processed = processor.process([EngineOutput(bad, [5], logprobs=logprobs), make_output(good, [5])])
    first, second = processed.outputs
    assert (first.finish_reason, first.finished) == ("error", True)
    assert "OverflowError" in (first.error or "")
    assert (second.finish_reason, second.output_tokens) == (None, [5])
    assert processed.stopped_request_ids == [bad]  # the engine still computes it
    assert processor.num_open == 1
    assert (processor.open_ids(bad), processor.open_ids(good)) == ([], [good])


def test_slices_of_news_are_short_and_hold_everything_in_order():
    news = [make_output(str(place), [place]) for place in range(5 * MAX_OUTPUTS)]
    news.insert(3, make_output("long", [1], num_prompt_logprobs=3000))
    news.append(EngineOutput("vector", [], finish_reason="stop", embedding=[0.5] * 10_000))
    slices = list(slices_of(news))
    assert all(len(part) <= MAX_OUTPUTS for part in slices)
    for part in slices:
        numbers = sum(21 * len(output.prompt_logprobs or ()) for output in part)
        assert numbers <= MAX_NUMBERS
    flat = [output for part in slices for output in part]
    assert [output.request_id for output in flat if output.request_id != "long"] == [
        output.request_id for output in news if output.request_id != "long"
    ]
    parts = [output for output in flat if output.request_id == "long"]
    assert len(parts) > 5
    assert [entry.token_id for part in parts for entry in part.prompt_logprobs or ()] == list(range(3000))
    assert [part.new_token_ids for part in parts] == [[]] * (len(parts) - 1) + [[1]]


def test_short_news_are_one_slice_as_they_are():
    news = [make_output("a", [1], num_prompt_logprobs=2), make_output("b", [2])]
    assert list(slices_of(news)) == [news]
    assert list(slices_of([])) == []


async def test_the_slowest_reader_makes_room_and_others_lose_nothing():
    aborted = []
    requests = OpenRequests(None, aborted.extend, max_unread=100)
    slow, quick = (requests.add(make_inputs_of(name)) for name in "ab")
    for place in range(60):
        requests.take([make_output(stream.request_ids[0], [place]) for stream in (slow, quick)])
        if slow.request_ids[0] not in aborted:
            assert (await anext(quick)).output_tokens == [place]
    assert aborted == [slow.request_ids[0]]
    [last] = [output async for output in slow]
    assert (last.finish_reason, last.error_code) == ("error", "slow_reader")
    assert requests.num_samples == 1


async def test_an_answer_that_is_complete_and_not_read_makes_room_too():
    requests = OpenRequests(None, lambda ids: None, max_unread=100)
    slow, quick = (requests.add(make_inputs_of(name)) for name in "ab")
    requests.take([msgspec.structs.replace(make_output(slow.request_ids[0], [1] * 90), finish_reason="length")])
    requests.take([make_output(quick.request_ids[0], [2] * 20)])
    assert [output.error_code async for output in slow] == ["slow_reader"]
    assert (await anext(quick)).output_tokens == [2] * 20


async def test_what_was_dropped_or_closed_counts_no_longer():
    requests = OpenRequests(None, lambda ids: None, max_unread=10**6)
    for index in range(3):
        stream = requests.add(make_inputs_of(str(index)))
        requests.take([make_output(stream.request_ids[0], [1] * 9)])
        if index:
            await stream.aclose()
        del stream
    assert (requests._unread.size, len(requests._unread.streams)) == (0, 0)


def make_inputs_of(name: str) -> Submission:
    """A submission with an id of its own."""
    submission = make_submission()
    [prompt] = submission.prompts
    return msgspec.structs.replace(submission, prompts=[msgspec.structs.replace(prompt, request_id=name)])
