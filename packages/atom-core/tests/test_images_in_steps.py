"""Steps with pictures: how many are encoded in one, when pixels are sent, what a worker keeps of them."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import numpy as np
import pytest
import torch

from atom_core.messages import (
    EngineRequest,
    NewRequest,
    PlacedImage,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    images_within,
)
from atom_core.scheduler.images_at_worker import without_pixels
from atom_core.scheduler.request import RequestStatus
from atom_core.scheduler.step_plan import StepPlan
from atom_core.worker.graphs.shapes import GraphShape
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.steps.batch import StepRows
from atom_core.worker.steps.moved_positions import MovedPositions
from atom_core.worker.vision.feature_cache import FeatureCache
from atom_core.worker.vision.pictures import Pictures
from atom_core.worker.vision.sight import Sight
from atom_models.vision.seen import SeenRows
from atom_models.vision.spec import VisionSpec
from scheduled_requests import make_engine
from seeing_models import END, IMAGE, START, picture

SPEC = VisionSpec(IMAGE, START, END, 4, 2, 64, 4096, (0.5,) * 3, (0.5,) * 3)
A, B = picture(1, 2, 4), picture(2, 2, 4)  # of 8 tokens each
ON_CPU = torch.device("cpu")


def request(name, *images, text=4, max_tokens=4, **fields):
    """`text` tokens before each picture, and behind the last one."""
    tokens, placed = [], []
    for image in images:
        tokens += [5] * text
        placed.append(PlacedImage(image, len(tokens), 8))
        tokens += [IMAGE] * 8
    params = SamplingParams(max_tokens=max_tokens)
    return EngineRequest(name, [*tokens, *[6] * text], params, images=tuple(placed), **fields)


def chunks(engine):
    return [[(one.request_id, one.num_new_tokens) for one in step.scheduled] for step in engine.steps]


def sent(step):
    """The pictures whose pixels a step brings, by request."""
    return {new.request_id: [bool(placed.image.pixels) for placed in new.images] for new in step.new_requests}


def test_a_step_ends_before_a_picture_that_it_has_no_room_to_encode():
    engine = make_engine(max_num_image_tokens=10)
    engine.add(request("a", A, B, max_tokens=1))
    engine.run()
    assert chunks(engine) == [[("a", 16)], [("a", 12)]]


def test_a_picture_is_encoded_whole_by_the_step_that_begins_it_and_costs_nothing_later():
    engine = make_engine(max_num_image_tokens=8, max_num_batched_tokens=10)
    engine.add(request("a", A, B, max_tokens=1))
    engine.run()
    # The second step has the last tokens of A, which cost nothing any more, and begins B.
    assert chunks(engine) == [[("a", 10)], [("a", 10)], [("a", 8)]]


def test_a_picture_of_a_video_takes_room_for_each_frame_that_is_encoded_by_itself():
    def of_video(name, *images):
        one = request(name, *images, max_tokens=1)
        deep = tuple(msgspec.structs.replace(placed, depth=4) for placed in one.images)
        return msgspec.structs.replace(one, images=deep)

    for room, steps in ((63, [[("a", 16)], [("a", 12)]]), (64, [[("a", 28)]])):
        engine = make_engine(max_num_image_tokens=room)
        engine.add(of_video("a", A, B))
        engine.run()
        assert chunks(engine) == steps
    engine = make_engine(max_num_image_tokens=63)
    engine.add(of_video("a", A), of_video("b", B))
    engine.run()
    assert chunks(engine) == [[("a", 16), ("b", 4)], [("b", 12)]]


def test_requests_of_a_step_share_its_room_for_pictures():
    engine = make_engine(max_num_image_tokens=16)
    engine.add(*(request(name, image, max_tokens=1) for name, image in zip("abc", (A, B, A), strict=True)))
    engine.run()
    assert chunks(engine)[0] == [("a", 16), ("b", 16)]
    engine = make_engine(max_num_image_tokens=8)
    engine.add(request("a", A, max_tokens=1), request("b", B, max_tokens=1))
    engine.run()
    assert chunks(engine) == [[("a", 16), ("b", 4)], [("b", 12)]]


def test_what_a_step_has_left_is_given_to_prompts_as_far_as_there_is_room_for_their_pictures():
    engine = make_engine(max_num_image_tokens=8, long_prefill_share=0.125)
    engine.add(request("a", A, B, text=2, max_tokens=1), request("b", text=4, max_tokens=1))
    engine.submit()
    assert chunks(engine) == [[("a", 12), ("b", 4)]]


def test_a_preempted_request_has_its_pictures_encoded_again():
    engine = make_engine(max_num_image_tokens=8, num_blocks=9, block_size=4, enable_prefix_caching=False)
    engine.add(request("a", A, max_tokens=16), request("b", B, max_tokens=16))
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    again = [step for step in engine.steps if any(new.request_id == "b" for new in step.new_requests)]
    assert [sent(step)["b"] for step in again] == [[True]] * len(again)
    assert len(again) > 1


def test_pixels_are_sent_once_for_all_requests_that_the_worker_knows():
    engine = make_engine(max_num_image_tokens=32)
    engine.add(request("a", A, B, A), request("b", A, max_tokens=1))
    engine.run()
    assert {name: pixels for step in engine.steps for name, pixels in sent(step).items()} == {
        "a": [True, True, False],
        "b": [False],
    }
    engine.add(request("c", A))
    engine.run()
    assert sent(engine.steps[-4]) == {"c": [True]}


def encode(pictures):
    """A feature for each token: the brightness of the picture, and its number."""
    return [
        torch.stack([torch.full((8,), float(each.sum())), torch.arange(8.0)], 1) for each in pictures
    ]  # fmt: skip


def test_features_leave_in_the_order_of_their_use_but_for_those_that_are_needed():
    calls = []
    cache = FeatureCache(lambda pictures: calls.append(len(pictures)) or encode(pictures), 2 * 64)
    a, b, c = (torch.full((8, 8, 3), number) for number in range(3))

    def take(**wanted):
        found = cache.take([name.encode() for name in wanted], lambda digest: wanted[digest.decode()])
        return [int(features[0, 0]) // 192 for features in found.values()]

    assert take(a=a, b=b) == [0, 1]
    assert take(a=a) == [0]
    assert take(c=c) == [2]
    cache.evict({b"b"})
    assert (b"a" in cache, b"b" in cache, b"c" in cache, cache.num_bytes) == (False, True, True, 128)
    cache.evict(())
    assert take(b=b, a=a) == [1, 0]
    cache.evict(())
    assert (b"c" in cache, cache.num_encoded, calls) == (False, 4, [2, 1, 1])


def new(request):
    return NewRequest(
        request.request_id, request.token_ids, len(request.token_ids), request.sampling_params, (), 0,
        images=request.images,
    )  # fmt: skip


def step(*scheduled, new_requests=(), dropped=()):
    rows = [ScheduledRequest(name, start, count, [], 0) for name, start, count in scheduled]
    return SchedulerOutput(0, rows, list(map(new, new_requests)), list(dropped))


def make_pictures(cache_bytes=0):
    return Pictures(encode, SPEC, cache_bytes=cache_bytes, device=ON_CPU)


def look(pictures, *scheduled, **news):
    one = step(*scheduled, **news)
    pictures.update(one)
    return pictures.look(one)


def test_a_step_sees_the_tokens_of_pictures_that_it_computes():
    pictures = make_pictures()
    sight = look(pictures, ("t", 0, 3), ("a", 0, 9), new_requests=[request("a", A, B)])
    assert sight.seen.rows.tolist() == [7, 8, 9, 10, 11]
    assert sight.seen.features[:, 1].tolist() == [0, 1, 2, 3, 4]
    # Two rows of four tokens, behind three of another request and four of text.
    assert np.add(sight.offsets, [0, 1, 2, *range(9)]).tolist() == [
        [0, 1, 2, 0, 1, 2, 3, 4, 4, 4, 4, 4],
        [0, 1, 2, 0, 1, 2, 3, 4, 4, 4, 4, 5],
        [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 4],
    ]
    sight = look(pictures, ("a", 9, 11), ("t", 3, 2))
    assert sight.seen.rows.tolist() == [0, 1, 2, 7, 8, 9, 10]
    assert sight.seen.features[:, 1].tolist() == [5, 6, 7, 0, 1, 2, 3]
    assert pictures.features.num_encoded == 2


def test_a_step_of_text_has_one_number_for_each_request_and_one_of_others_nothing():
    pictures = make_pictures()
    assert look(pictures, ("t", 0, 3)) is None
    sight = look(pictures, ("t", 3, 1), ("a", 12, 4), new_requests=[request("a", A)])
    assert (sight.seen, sight.offsets.tolist()) == (None, [0, -4, -4, -4, -4])
    assert look(pictures, ("a", 40, 2)).offsets.tolist() == [-4, -4]
    assert look(pictures, ("t", 4, 1)) is None
    assert pictures.features.num_encoded == 0
    assert look(pictures, ("t", 4, 1), dropped=["a"]) is None
    assert not pictures._pixels


def test_positions_of_models_that_have_one_are_not_moved():
    spec = VisionSpec(IMAGE, START, END, 4, 2, 64, 4096, (0.5,) * 3, (0.5,) * 3, has_threefold_positions=False)
    pictures = Pictures(encode, spec, cache_bytes=0, device=ON_CPU)
    sight = look(pictures, ("a", 0, 16), new_requests=[request("a", A)])
    assert sight.offsets.tolist() == [0] * 16
    assert sight.seen.rows.tolist() == [*range(4, 12)]


def test_tokens_between_the_rows_of_a_picture_are_text():
    """A token ends each of two rows of four, at places 4 and 9."""
    spec = dataclasses.replace(SPEC, has_threefold_positions=False, row_token_id=12)
    pictures = Pictures(encode, spec, cache_bytes=0, device=ON_CPU)
    one = request("a", A)
    one = msgspec.structs.replace(one, images=(PlacedImage(A, 4, 10),), token_ids=[*one.token_ids, 6, 6])
    sight = look(pictures, ("t", 0, 2), ("a", 0, 10), new_requests=[one])
    assert sight.seen.rows.tolist() == [6, 7, 8, 9, 11]
    assert sight.seen.features[:, 1].tolist() == [0, 1, 2, 3, 4]
    sight = look(pictures, ("a", 10, 3))
    assert sight.seen.rows.tolist() == [0, 1, 2]
    assert sight.seen.features[:, 1].tolist() == [5, 6, 7]
    assert look(pictures, ("a", 13, 3)).seen is None
    assert pictures.features.num_encoded == 1


def test_features_of_a_picture_stay_until_its_last_token_whatever_the_bound():
    pictures = make_pictures()
    look(pictures, ("a", 0, 6), new_requests=[request("a", A)])
    look(pictures, ("b", 0, 16), new_requests=[request("b", B)])
    assert (A.digest in pictures.features, B.digest in pictures.features) == (True, False)
    look(pictures, ("a", 6, 6), ("b", 16, 1))
    look(pictures, ("c", 0, 16), new_requests=[request("c", B)])
    assert A.digest not in pictures.features
    assert pictures.features.num_encoded == 3


def test_pixels_stay_until_the_last_request_with_them_has_gone():
    pictures = make_pictures()
    bare = msgspec.structs.replace(request("b", A), images=tuple(map(without_pixels, request("b", A).images)))
    look(pictures, ("a", 0, 4), new_requests=[request("a", A), bare])
    look(pictures, ("b", 0, 16), dropped=["a"])
    assert pictures.features.num_encoded == 1
    look(pictures, ("c", 0, 16), new_requests=[request("c", A)], dropped=["b"])
    assert list(pictures._pixels) == [A.digest]
    look(pictures, ("t", 0, 1), dropped=["c"])
    assert not pictures._pixels


def test_captured_decodes_read_how_far_their_requests_were_moved():
    moved = MovedPositions(torch.zeros(12, dtype=torch.int64))
    ends = np.array([0, 2, 3], dtype=np.int64)
    nothing = np.zeros(2, dtype=np.int64)
    rows = StepRows(nothing, nothing, np.diff(ends), ends, nothing, nothing[:0], nothing[:0], nothing)
    moved.fill(rows, GraphShape(4, 12, 3), Sight(np.array([-4, -4, -7])), np.array([1, 2]))
    # The first of three tokens is repeated, and the first two.
    assert moved.buffer.tolist() == [0, -4, -4, 0, 0, -7, 0, 0, 0, 0, 0, 0]
    moved.fill(rows, GraphShape(3, 6), Sight(np.array([-4, -4, -7])), np.array([0, 0]))
    assert moved.buffer.tolist()[:6] == [-4, -4, -7, 0, 0, 0]
    moved.fill(rows, GraphShape(3, 6), None, nothing)
    assert not moved.buffer.any()


def test_a_request_that_leaves_a_step_leaves_its_room_for_pictures():
    engine = make_engine()
    engine.add(request("a", A))
    [waiting] = engine.scheduler._book.by_id.values()
    plan = StepPlan(0, 32, engine.scheduler._ends, ran_ahead=False, keeps_samples=True, image_budget=8)
    plan.add(waiting, 6)
    assert (plan.budget, plan.image_budget) == (26, 0)
    plan.discard(waiting)
    assert (plan.budget, plan.image_budget) == (32, 8)
    waiting.num_seen_tokens = 12
    assert not waiting.images_to_encode(16)
    waiting.leave(RequestStatus.WAITING)
    assert waiting.images_to_encode(16) == waiting.images


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_is_seen_within_the_room_of_each_step_by_a_worker_that_has_all_pixels_it_needs(seed: int) -> None:
    draw = random.Random(seed)
    ahead, room = draw.choice((0, 1)), draw.choice((8, 12, 30))
    engine = make_engine(
        ahead=ahead, max_num_image_tokens=room, num_blocks=24, max_num_batched_tokens=draw.choice((5, 16, 40))
    )
    crowd = [picture(number, 2, 4) for number in range(4)]
    for number in range(30):
        images = draw.choices(crowd, k=draw.randrange(4))
        name = f"{number}" if images else f"text {number}"
        engine.add(request(name, *images, text=draw.randrange(1, 9), max_tokens=draw.randrange(1, 20)))
        for _ in range(draw.randrange(4)):
            if engine.scheduler.has_unfinished():
                engine.step()
        if draw.random() < 0.2:
            engine.abort(str(draw.randrange(number + 1)))
    engine.run()
    pictures, num_begun = make_pictures(), 0
    for each in engine.steps:
        pictures.update(each)
        before = {name: prompt.num_computed_tokens for name, prompt in pictures._prompts.items()}
        pictures.look(each)
        begun = sum(
            len(images_within(prompt.images, max(start, before[name]), start + count))
            - bool(start and start == before[name] and _is_inside(prompt.images, start))
            for name, start, count in ((s.request_id, s.num_computed_tokens, s.num_new_tokens) for s in each.scheduled)
            if (prompt := pictures._prompts.get(name)) is not None
        )
        assert begun * 8 <= room
        num_begun += begun
    assert 0 < pictures.features.num_encoded <= num_begun
    assert engine.scheduler.stats().num_free_blocks == 24


def _is_inside(images, token):
    return any(placed.first_token < token for placed in images_within(images, token, token + 1))


def test_what_is_compiled_computes_steps_of_text_alone():
    calls = []

    def run_as(name):
        return lambda *given, **more: calls.append((name, len(given), [*more])) or torch.zeros(1)

    model = EngineModel(run_as("compiled"), torch.nn.Identity(), {}, run_as_written=run_as("written"))
    ids, seen = torch.zeros(2, dtype=torch.int64), SeenRows(torch.zeros(0), torch.zeros(0, 8))
    model.run_layers(ids, ids)
    model.run_layers(ids, ids.expand(3, 2), seen=seen)
    model.run_layers(ids, ids, seen=seen)
    later_stage = dataclasses.replace(model, arriving=torch.zeros(4, 8))
    later_stage.run_layers(ids, ids.expand(3, 2))
    later_stage.run_layers(ids, ids)
    assert calls == [
        ("compiled", 2, []),
        ("written", 2, ["seen"]),
        ("written", 2, ["seen"]),
        ("written", 3, []),
        ("compiled", 3, []),
    ]
