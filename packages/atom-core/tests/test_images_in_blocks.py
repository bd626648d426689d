"""Blocks of prompts with pictures: equal pictures are shared, and others never are, though their tokens are equal."""

from __future__ import annotations

import itertools

from atom_core.engine.replicas.router import Router
from atom_core.kv_cache import KVCacheConfig, PagedCache
from atom_core.kv_cache.elsewhere.at_peer import digest_of
from atom_core.kv_cache.hashing import BlockNames, make_block_hasher
from atom_core.messages import PlacedImage, images_within
from atom_kernels.protocols import Pages
from seeing_models import picture

BLOCK = 4
A, B = picture(1, 2, 3), picture(2, 2, 3)
TOKENS = [5, 6, *[503] * 6, 7, 8, *[503] * 6, 9, 10, 11]  # pictures at 2 and 10


def placed(*images, firsts=(2, 10)):
    return tuple(PlacedImage(image, first, 6) for image, first in zip(images, firsts, strict=False))


def names(images, tokens=TOKENS, **settings):
    found = []
    BlockNames(make_block_hasher("xxhash64"), BLOCK, **settings).extend(found, tokens, 4, salt="", images=images)
    return found


def admit(cache, tokens, images):
    table = cache.make_table("", images)
    num_found = cache.admit(table, tokens, use_prefix=True, max_tokens=len(tokens), reserve=0, count=True)
    cache.publish(table, tokens, len(tokens))
    return num_found


def test_pictures_of_a_part_of_a_prompt_are_those_that_have_a_token_there():
    images = placed(A, B)
    for first, end in itertools.combinations(range(len(TOKENS) + 1), 2):
        inside = [one for one in images if any(first <= token < end for token in range(one.first_token, one.end))]
        assert list(images_within(images, first, end)) == inside


def test_a_prompt_shares_blocks_up_to_the_first_other_picture():
    for hasher in (None, lambda prefix, data: b"all the same"):
        cache = PagedCache(KVCacheConfig(num_blocks=64, block_size=BLOCK), hasher, max_step_tokens=64)
        assert admit(cache, TOKENS, placed(A, B)) == 0
        if hasher is None:
            assert admit(cache, TOKENS, placed(A, B)) == 16
            assert admit(cache, TOKENS, placed(A, A)) == 8
        assert admit(cache, TOKENS, placed(B, B)) == 0
        assert admit(cache, TOKENS, ()) == 0


def test_each_block_of_a_picture_has_a_name_of_its_own_by_the_offset():
    tokens = [503] * 21
    near, far = (placed(A, firsts=(first,)) for first in (1, 2))
    assert names(near, tokens)[0] != names(far, tokens)[0]
    assert names(placed(A, B))[1:] != names(placed(B, A))[1:]
    assert names(placed(A, A)) == names(placed(A, picture(1, 2, 3)))


def test_a_name_that_covers_the_next_token_covers_the_picture_that_begins_there():
    tokens, own, other = [5] * 4 + [503] * 6 + [9] * 7, placed(A, firsts=(4,)), placed(B, firsts=(4,))
    assert names(own, tokens)[0] == names(other, tokens)[0]
    assert names(own, tokens, names_cover_next=True)[0] != names(other, tokens, names_cover_next=True)[0]


def test_routers_and_peers_tell_prompts_apart_by_their_pictures():
    router = Router(BLOCK, "xxhash64")
    router.join(0, 64)
    router.route(TOKENS, {}, images=placed(A, B))
    computed = [router.route(TOKENS, {}, images=images).num_to_compute for images in (placed(A, B), placed(A, A))]
    assert computed == [3, 11]
    digests = {digest_of(TOKENS, images) for images in (placed(A, B), placed(B, A), placed(A), ())}
    assert len(digests) == 4
    # What stands behind the tokens is no matter.
    assert digest_of(TOKENS[:8], placed(A, B)) == digest_of(TOKENS[:8], placed(A))


def test_events_tell_which_pictures_a_block_has_and_where_they_begin():
    config = KVCacheConfig(num_blocks=64, block_size=BLOCK, groups=(Pages(),), tells_events=True)
    cache = PagedCache(config, max_step_tokens=64)
    table = cache.make_table("salt", placed(A, B))
    cache.admit(table, TOKENS, use_prefix=True, max_tokens=len(TOKENS), reserve=0, count=True)
    cache.publish(table, TOKENS, len(TOKENS))
    [event] = cache.take_events()
    a, b = A.digest.hex(), B.digest.hex()
    assert event.extra_keys == [((a, 2), "salt"), ((a, -2),), ((b, 2),), ((b, -2),)]


def test_the_first_picture_of_blocks_that_are_told_together_may_be_in_a_later_one():
    cache = PagedCache(
        KVCacheConfig(num_blocks=64, block_size=BLOCK, groups=(Pages(),), tells_events=True), max_step_tokens=64
    )
    tokens = [5] * 6 + [503] * 6 + [9] * 4
    table = cache.make_table("", placed(A, firsts=(6,)))
    cache.admit(table, tokens, use_prefix=True, max_tokens=len(tokens), reserve=0, count=True)
    cache.publish(table, tokens, len(tokens))
    [event] = cache.take_events()
    a = A.digest.hex()
    assert event.extra_keys == [None, ((a, 2),), ((a, -2),), None]
