"""Sharding arithmetic: two ranks (threads of this process) compute what one computes."""

from __future__ import annotations

import pytest
import torch

from atom_models import BuildContext, build_model, load_model, load_weights
from atom_models.architectures.registry import has_experts
from atom_models.groups import Groups
from atom_models.layers import (
    ColumnParallelLinear,
    LMHead,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    VocabularyEmbedding,
)
from atom_models.layers.loadable import expected_weights
from atom_models.layers.shared_vocabulary import SharedVocabulary
from atom_models.paged_run import PagedRun, SequenceStep
from draft_runs import draft_logits, load_both
from thread_ranks import Group
from tiny_architectures import FAMILIES
from tiny_heads import make_head
from tiny_models import make_tiny_llama


def make_context(group=None, rank=0, *, spreads=False):
    """One rank's; it holds whole experts where experts are spread."""
    groups = Groups(group.as_rank(rank)) if group else Groups()
    return BuildContext(dtype=torch.float32, groups=groups.spreading_experts() if spreads else groups)


def fill(layer):
    for index, (name, expected) in enumerate(expected_weights(layer).items()):
        generator = torch.Generator().manual_seed(index)
        layer.load_shard(name, torch.randn(expected.shape, generator=generator))
    layer.finish()
    return layer


def qkv(context, num_kv_heads=2):
    return QKVParallelLinear(
        16, head_dim=4, num_heads=4, num_kv_heads=num_kv_heads, context=context, prefix="a.qkv", bias=True
    )


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_of_a_row_linear_sum_to_the_whole_with_its_bias_once(size):
    def make(context):
        return fill(RowParallelLinear(16, 12, context, prefix="a.o", bias=True))

    group, x = Group(size), torch.randn(3, 16)
    expected = make(make_context())(x)
    for result in group.run(lambda rank: make(make_context(group, rank))(x.chunk(size, -1)[rank])):
        assert torch.allclose(result, expected, atol=1e-5)


def test_ranks_of_column_linears_hold_neighboring_outputs():
    group, x = Group(2), torch.randn(3, 16)
    whole = fill(ColumnParallelLinear(16, 12, make_context(), prefix="a.p", bias=True))(x)
    parts = [fill(ColumnParallelLinear(16, 12, make_context(group, r), prefix="a.p", bias=True))(x) for r in range(2)]
    assert torch.allclose(torch.cat(parts, -1), whole, atol=1e-6)


def test_ranks_of_a_merged_linear_hold_a_share_of_each_part():
    def make(context):
        return fill(MergedColumnParallelLinear(16, {"gate": 8, "up": 12}, context, prefix="m.x"))

    group, x = Group(2), torch.randn(3, 16)
    gate, up = make(make_context())(x).split([8, 12], -1)
    for rank in range(2):
        mine = make(make_context(group, rank))(x)
        assert torch.allclose(mine, torch.cat((gate.chunk(2, -1)[rank], up.chunk(2, -1)[rank]), -1), atol=1e-6)


@pytest.mark.parametrize(("num_kv_heads", "size"), [(2, 2), (4, 2), (2, 4), (1, 4)])
def test_ranks_share_heads_and_repeat_kv_heads_where_there_are_too_few(num_kv_heads, size):
    group, x = Group(size), torch.randn(3, 16)
    whole = fill(qkv(make_context(), num_kv_heads))
    q, k, v = (part.unflatten(-1, (-1, 4)) for part in whole(x).split(whole.sizes, -1))
    for rank in range(size):
        mine = fill(qkv(make_context(group, rank), num_kv_heads))
        heads = [part.unflatten(-1, (-1, 4)) for part in mine(x).split(mine.sizes, -1)]
        per_rank = 4 // size
        assert torch.allclose(heads[0], q[:, rank * per_rank : (rank + 1) * per_rank], atol=1e-6)
        group_size = 4 // num_kv_heads
        first = rank * per_rank // group_size
        assert torch.allclose(heads[1], k[:, first : first + mine.num_kv_heads], atol=1e-6)
        assert torch.allclose(heads[2], v[:, first : first + mine.num_kv_heads], atol=1e-6)


@pytest.mark.parametrize(
    ("size", "kv_heads", "held"),
    [(2, 3, [(0, 2), (2, 3)]), (4, 5, [(0, 2), (2, 3), (3, 4), (4, 5)]), (4, 2, [(0, 1), (0, 1), (1, 2), (1, 2)])],
)
def test_kv_heads_stay_with_their_queries(size, kv_heads, held):
    group = Group(size)
    layers = [
        QKVParallelLinear(
            8,
            head_dim=4,
            num_heads=4 * kv_heads,
            num_kv_heads=kv_heads,
            context=make_context(group, rank),
            prefix="a.q",
        )
        for rank in range(size)
    ]
    assert [layer.num_kv_heads for layer in layers] == [last - first for first, last in held]
    queries = [layer.query_elements for layer in layers]
    if kv_heads >= size:
        assert queries == [(16 * first, 16 * last) for first, last in held]
    else:
        assert queries == [(8 * rank, 8 * rank + 8) for rank in range(size)]


@pytest.mark.parametrize("tie", [False, True])
def test_ranks_split_a_vocabulary_that_they_cannot_share_evenly(tie):
    def run(context):
        embedding = VocabularyEmbedding(11, 4, context, prefix="e")
        head = LMHead(4, 11, context, tied_to=embedding if tie else None)
        fill(embedding)
        fill(head)
        logits = head(embedding(torch.tensor([0, 5, 6, 10])))
        return SharedVocabulary(context.collectives, 11).whole(logits)

    group = Group(2)
    expected = run(make_context())
    assert expected.shape == (4, 11)
    for result in group.run(lambda rank: run(make_context(group, rank))):
        assert torch.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda c: RowParallelLinear(15, 12, c, prefix="a.o"), r"a\.o: in_features is 15"),
        (lambda c: ColumnParallelLinear(16, 13, c, prefix="a.p"), r"a\.p: out_features of p is 13"),
        (
            lambda c: QKVParallelLinear(16, head_dim=4, num_heads=3, num_kv_heads=1, context=c, prefix="a.q"),
            "num_attention_heads is 3",
        ),
        (
            lambda c: QKVParallelLinear(
                16, head_dim=4, num_heads=6, num_kv_heads=3, context=c, prefix="a.q", evenly=True
            ),
            "num_key_value_heads is 3",
        ),
    ],
)
def test_sizes_that_ranks_cannot_share_are_refused_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        make(make_context(Group(2), 0))


def test_a_model_that_ranks_cannot_share_is_refused(tiny_llama):
    checkpoint = load_model(tiny_llama).checkpoint
    with pytest.raises(ValueError, match="num_key_value_heads is 2, which 3 ranks can neither share"):
        build_model(checkpoint, make_context(Group(3), 0))


@pytest.mark.parametrize(("size", "tie"), [(2, False), (2, True), (4, False)])
def test_a_whole_llama_on_several_ranks_gives_the_logits_of_one(tmp_path, size, tie):
    path = make_tiny_llama(tmp_path / "model", tie=tie, attention_bias=True, mlp_bias=True)
    assert_ranks_give_the_logits_of_one(path, size)


@pytest.mark.parametrize(("size", "heads", "kv_heads"), [(2, 9, 3), (4, 10, 5)])
def test_a_llama_whose_heads_do_not_come_out_even_gives_the_logits_of_one(tmp_path, size, heads, kv_heads):
    path = make_tiny_llama(
        tmp_path / "model", num_heads=heads, kv_heads=kv_heads, head_dim=16, attention_bias=True, mlp_bias=True
    )
    assert_ranks_give_the_logits_of_one(path, size)


# Biases of experts and sinks; shared experts; norms over all heads, with KV heads that two ranks share; latents, with
# and without one of queries; an index that each rank has whole. The others are put together of the same layers.
SEVERAL_RANKS = [
    ("gpt_oss", 2),
    ("glm4_moe", 2),
    ("minimax_m2", 2),
    ("minimax_m2", 4),
    ("deepseek_v3", 2),
    ("deepseek_v2-lite", 4),
    ("glm_moe_dsa", 2),
]
OTHERS = [(family, 2) for family in FAMILIES if (family, 2) not in SEVERAL_RANKS]


@pytest.mark.parametrize(
    ("family", "size"), [*SEVERAL_RANKS, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_a_family_on_several_ranks_gives_the_logits_of_one(tiny_family, family, size):
    assert_ranks_give_the_logits_of_one(tiny_family(family), size)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if has_experts(family.architecture)])
def test_ranks_of_whole_experts_give_the_logits_of_one(tiny_family, family):
    assert_ranks_give_the_logits_of_one(tiny_family(family), 2, spreads=True)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_prediction_layers_on_two_ranks_give_the_logits_of_one(tiny_family, family):
    path, text, group = tiny_family(family), [5, 6, 7, 8, 9, 300, 383], Group(2)
    [expected] = draft_logits(*load_both(path), [text])

    def run(rank):
        return draft_logits(*load_both(path, groups=Groups(group.as_rank(rank))), [text])[0]

    for logits in group.run(run):
        assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("own_embedding", [False, True])
def test_an_eagle3_head_on_two_ranks_gives_the_logits_of_one(tmp_path, own_embedding):
    paths = make_tiny_llama(tmp_path / "target", num_layers=4), tmp_path / "head"
    make_head(paths[1], own_embedding=own_embedding, draft_vocab_size=101)
    text, group = [5, 6, 7, 8, 9, 300, 383], Group(2)
    [expected] = draft_logits(*load_both(*paths), [text])

    def run(rank):
        return draft_logits(*load_both(*paths, groups=Groups(group.as_rank(rank))), [text])[0]

    for logits in group.run(run):
        assert torch.allclose(logits, expected, atol=1e-4)


def assert_ranks_give_the_logits_of_one(path, size, *, spreads=False):
    loaded = load_model(path)
    tokens = [5, 6, 7, 8, 9, 300, 383]
    group = Group(size)

    def run(rank):
        model = build_model(loaded.checkpoint, make_context(group, rank, spreads=spreads))
        load_weights(model, loaded.checkpoint, progress=False)
        [hidden_states] = PagedRun(model, 1).step([SequenceStep(tokens, 0, [0])])
        with torch.inference_mode():
            logits = model.compute_logits(hidden_states)
            return SharedVocabulary(group.as_rank(rank), loaded.checkpoint.text_config["vocab_size"]).whole(logits)

    results = group.run(run)
    expected = loaded.logits([tokens])[0]
    for logits in results:
        assert torch.allclose(logits, expected, atol=1e-4)
