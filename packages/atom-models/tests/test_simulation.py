"""Steps on systems that are not here: from the model's own weights and mixers, at the rates of named systems."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from atom_kernels.protocols import CacheFormat
from atom_models.checkpoint import open_checkpoint
from atom_models.quantization import AS_STORED
from atom_models.requirements import ModelRequirements, model_requirements
from atom_models.requirements.rank_work import Matrix
from atom_models.simulation import (
    PARTS,
    SYSTEMS,
    Link,
    Prediction,
    Ranks,
    StepTime,
    UnknownSystemError,
    find_system,
    predict,
    scaling_of,
)
from atom_models.simulation.links import Links
from published_configs import write_published_config

H200, RACK = find_system("8xH200"), find_system("GB200-NVL72")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> ModelRequirements:
    return model_requirements(open_checkpoint(write_published_config("llama-3.1-8b", tmp_path_factory.mktemp("dense"))))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> ModelRequirements:
    folder = write_published_config("qwen3-30b-a3b", tmp_path_factory.mktemp("mixture"))
    return model_requirements(open_checkpoint(folder))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> ModelRequirements:
    folder = write_published_config("llama-3.1-8b", tmp_path_factory.mktemp("tied"))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    return model_requirements(open_checkpoint(folder))


def simulate(needs: ModelRequirements, ranks: Ranks | None = None, system=H200, **options) -> Prediction:
    asked = {"batch_size": 1, "context": 1024, "weight_format": "bfloat16", "cache": CacheFormat("bfloat16")} | options
    found = predict(needs, system, ranks or Ranks(), **asked)
    assert found is not None
    return found


def read_in_a_step(needs: ModelRequirements, weight_format: str = "bfloat16", ranks: int = 1) -> float:
    share = needs.on_rank(ranks)
    assert share is not None
    return sum(count * one.num_experts * one.num_bytes(weight_format) for one, count in share.work.matrices.items())


@pytest.mark.parametrize("weight_format", ["bfloat16", "float32", "int8", "int4", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_reads_the_weights_that_the_plan_counts_less_the_embedding(mixture, weight_format, ranks):
    share = mixture.on_rank(ranks)
    table = (4 if weight_format == "float32" else 2) * 151936 * 2048 // ranks
    # Norms are counted by the plan alone.
    assert read_in_a_step(mixture, weight_format, ranks) == pytest.approx(
        share.weight_bytes[weight_format] - table, rel=1e-3
    )


def test_a_head_that_is_tied_to_the_embedding_is_read_all_the_same(dense, tied):
    assert tied.num_parameters < dense.num_parameters
    assert read_in_a_step(tied) == read_in_a_step(dense)


def test_weights_are_read_at_the_rate_of_a_copy(dense):
    step = simulate(dense).decode
    assert step.parts["weights"] == pytest.approx(read_in_a_step(dense) / (4.8e12 * 0.893))
    assert step.limit == "weights"
    assert tuple(step.parts) == PARTS
    assert step.seconds == sum(step.parts.values())


def test_longer_requests_read_more_cache_and_float8_half_of_it(dense):
    short, long = (simulate(dense, batch_size=8, context=context).decode.parts for context in (1000, 4000))
    assert long["cache"] == pytest.approx(4 * short["cache"], rel=0.01)
    assert {**long, "cache": 0} == {**short, "cache": 0}
    small = simulate(dense, batch_size=8, context=4000, cache=CacheFormat("float8_e4m3fn")).decode.parts
    assert small["cache"] == pytest.approx(long["cache"] / 2, rel=0.01)


def test_experts_that_no_token_chose_are_not_read(mixture):
    one, many = (simulate(mixture, batch_size=batch).decode.parts["weights"] for batch in (1, 128))
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    rest = read_in_a_step(mixture) - experts
    rate = H200.device.read_rate
    assert one == pytest.approx((rest + experts * 8 / 128) / rate)
    assert many == pytest.approx((rest + experts) / rate, rel=0.001)


def test_prompts_wait_for_products_and_those_of_quantized_weights_for_less(dense):
    plain, packed = (simulate(dense, weight_format=name).prompts[8192] for name in ("bfloat16", "fp8"))
    assert plain.limit == "products"
    assert packed.parts["products"] < 0.7 * plain.parts["products"]
    assert plain.parts["products"] > 2 * 7.5e9 * 8192 / H200.device.product_rate(16)


def test_weights_of_four_bits_are_read_slower_where_they_are_decoded(dense):
    b200 = find_system("8xB200")
    assert b200.device.multiplies_in(4)
    assert not H200.device.multiplies_in(4)
    shares = []
    for system in (b200, H200):
        plain, packed = (simulate(dense, system=system, weight_format=name).decode for name in ("bfloat16", "int4"))
        shares.append(packed.parts["weights"] / plain.parts["weights"])
    # The head is not packed.
    assert 1.2 < shares[1] / shares[0] < 1 / 0.75


def test_two_ranks_halve_the_weights_and_exchange(dense):
    one, two = (simulate(dense, Ranks(ranks)).decode.parts for ranks in (1, 2))
    assert one["links"] == 0
    assert two["weights"] == pytest.approx(one["weights"] / 2)
    assert two["launches"] == one["launches"]
    # Two sums in each of 32 layers, one behind the embedding, and the logits.
    links = H200.links
    assert two["links"] == pytest.approx(65 * links.sum_seconds(4096 * 2, 2) + links.gather_seconds(4 * 128256, 2))


def test_kernels_take_their_launches(dense, mixture):
    # Four products and attention in each layer, and the head.
    assert simulate(dense).decode.parts["launches"] == pytest.approx((32 * 5 + 1) * 4e-6)
    # Two products and attention, the router, routing, sorting, two products of experts and their sum.
    assert simulate(mixture).decode.parts["launches"] == pytest.approx((48 * 9 + 1) * 4e-6)


def test_activations_go_to_memory_and_back(dense):
    widths = 32 * ((4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096)) + (4096 + 128256)
    logits = 2 * 4 * 128256
    moved = 16 * (2 * 2 * widths + logits)
    assert simulate(dense, batch_size=16).decode.parts["activations"] == pytest.approx(moved / H200.device.read_rate)


def test_engines_share_requests_and_nothing_else(dense):
    alone, shared = simulate(dense, batch_size=32), simulate(dense, Ranks(1, 4), batch_size=128)
    assert shared.decode == alone.decode
    assert shared.num_requests == 4 * alone.num_requests
    assert shared.user_tokens == alone.user_tokens
    assert shared.device_tokens == alone.device_tokens


def test_spread_experts_are_held_once_by_engines_that_exchange_tokens(mixture):
    shared = Ranks(1, 8), Ranks(1, 8, spread_experts=True)
    whole, spread = (simulate(mixture, ranks, batch_size=256) for ranks in shared)
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert spread.weight_bytes == pytest.approx(whole.weight_bytes - experts * 7 / 8)
    assert spread.decode.parts["weights"] < whole.decode.parts["weights"] / 3
    assert (whole.decode.parts["links"], spread.decode.parts["links"] > 0) == (0, True)
    # In each of 48 mixtures tokens go to all ranks, and sums come back.
    exchanged = 2 * 48 * H200.links.gather_seconds(256 * 2048 * 2, 8)
    assert spread.decode.parts["links"] == pytest.approx(exchanged)
    both = simulate(mixture, Ranks(2, 4, spread_experts=True), batch_size=256).decode.parts["links"]
    # Attention is summed in each layer, and what is behind the embedding.
    summed = 49 * H200.links.sum_seconds(64 * 2048 * 2, 2) + H200.links.gather_seconds(4 * 64 * 151936, 2)
    assert both == pytest.approx(exchanged + summed)
    in_tensor = simulate(mixture, Ranks(8, spread_experts=True)), simulate(mixture, Ranks(4))
    assert in_tensor[0].weight_bytes < in_tensor[1].weight_bytes


def test_stages_hold_some_of_the_layers_and_take_turns_with_requests(dense):
    whole, staged = simulate(dense, batch_size=32), simulate(dense, Ranks(1, 1, 4), batch_size=128)
    hops = 3 * (H200.links.inside.start(2) + 32 * 4096 * 2 / H200.links.inside.rate(2))
    assert staged.decode.seconds == pytest.approx(whole.decode.seconds + hops)
    # A quarter of the layers, and all of the embedding or of the head.
    table = 128256 * 4096 * 2
    assert staged.weight_bytes == pytest.approx((whole.weight_bytes - 2 * table) / 4 + table, rel=1e-3)
    assert staged.num_requests > 4 * whole.num_requests
    assert Ranks(2, 1, 4).describe() == "tp 2 x pp 4"
    options = {"batch_size": 1, "context": 16, "weight_format": "bfloat16", "cache": CacheFormat("bfloat16")}
    assert predict(dense, RACK, Ranks(1, 1, 64), **options) is None


def test_what_fits_is_what_weights_leave_of_nine_tenths(dense):
    found = simulate(dense, system=RACK)
    share = dense.on_rank(1)
    each = share.kv_bytes(1024, CacheFormat("bfloat16"), RACK.device.accelerator.platform)
    assert found.num_requests == (0.9 * 186e9 - share.weight_bytes["bfloat16"]) // each
    assert replace(found, batch_size=found.num_requests).fits
    assert not replace(found, batch_size=found.num_requests + 1).fits
    assert simulate(dense, weight_format="float32", context=10**9).num_requests == 0


def test_requests_leave_a_quarter_to_states_behind_cached_prefixes(tmp_path):
    needs = model_requirements(open_checkpoint(write_published_config("qwen3.5-27b", tmp_path)))
    found, share = simulate(needs, system=RACK), needs.on_rank(1)
    assert share is not None
    each = share.kv_bytes(1024, CacheFormat("bfloat16"), RACK.device.accelerator.platform)
    assert found.num_requests == 0.75 * (0.9 * 186e9 - share.weight_bytes["bfloat16"]) // each


def test_ranks_that_cannot_share_evenly_give_nothing(mixture):
    options = {"batch_size": 1, "context": 16, "weight_format": "bfloat16", "cache": CacheFormat("bfloat16")}
    assert predict(mixture, RACK, Ranks(64), **options) is None


def test_scaling_ends_where_a_doubling_gains_less_than_a_tenth(dense):
    found = [simulate(dense, Ranks(ranks), system=RACK, batch_size=8) for ranks in (1, 2, 4, 8, 16, 32)]
    scaling = scaling_of(found)
    by_ranks = {one.ranks.count: one.decode.seconds for one in found}
    assert scaling.stops_at is not None
    assert by_ranks[scaling.stops_at] < 1.1 * by_ranks[2 * scaling.stops_at]
    assert all(by_ranks[few] >= 1.1 * by_ranks[2 * few] for few in by_ranks if few < scaling.stops_at)
    assert scaling.limit == found[-1].decode.limit
    assert scaling_of(found[:2]).stops_at is None
    for seconds, stops_at in ((1.11, None), (1.09, 1)):
        few = replace(found[0], decode=StepTime(dict.fromkeys(PARTS, seconds)))
        assert scaling_of([few, replace(found[1], decode=StepTime(dict.fromkeys(PARTS, 1.0)))]).stops_at == stops_at


def test_prompts_of_others_come_between_the_tokens_of_a_request(dense):
    found = simulate(dense, Ranks(1, 2), batch_size=64)
    assert found.served_seconds(1024, 512) == pytest.approx(
        found.decode.seconds + 32 * found.prompts[1024].seconds / 512
    )


LINK = Link(100e9, 0.5, 4e-6, 1e-6, "made up")


def test_small_sums_take_the_latency_and_large_ones_their_bytes():
    assert LINK.sum_seconds(0, 2) == 4e-6
    assert LINK.sum_seconds(0, 8) == 6e-6
    assert LINK.sum_seconds(8e9, 1) == 0
    assert LINK.sum_seconds(8e9, 8) == pytest.approx(2 * 7e9 / 50e9, rel=1e-3)
    assert LINK.gather_seconds(8e9, 8) == pytest.approx(7e9 / 50e9, rel=1e-3)


def test_few_ranks_use_few_of_the_links_to_peers():
    meshed = replace(LINK, peers=7)
    assert [meshed.rate(ranks) / LINK.rate(ranks) for ranks in (2, 8)] == [1 / 7, 1]


def test_sums_over_nodes_cross_between_them_with_a_share_of_the_bytes():
    links = Links(LINK, replace(LINK, bytes_per_second=10e9, latency=20e-6), node_size=4)
    inside, across = links.sum_seconds(4e9, 4), links.sum_seconds(4e9, 8)
    assert across == pytest.approx(2 * 3e9 / 50e9 + 1e9 / 5e9, rel=1e-3)
    assert inside == LINK.sum_seconds(4e9, 4)
    assert links.gather_seconds(4e9, 8) > links.gather_seconds(4e9, 4)
    hops = (4e-6 + 1e9 / 50e9), (20e-6 + 1e9 / 5e9)
    assert links.stage_seconds(1e9, 1, 4) == pytest.approx(3 * hops[0])
    assert links.stage_seconds(1e9, 2, 4) == pytest.approx(2 * hops[0] + hops[1])
    assert links.stage_seconds(1e9, 8, 2) == pytest.approx(hops[1])
    with pytest.raises(ValueError, match="nodes of 4 devices have no links between them"):
        Links(LINK, None, 4).sum_seconds(1, 8)


@pytest.mark.parametrize(
    ("system", "file"),
    [("8xH100", "gpu-nvidia-h100-80gb-hbm3.json"), ("8xH200", "tensor-parallel-nvidia-h200.json")],
)
def test_rates_that_are_called_measured_are_those_of_the_file(system: str, file: str):
    measured, device = json.loads((RESULTS / file).read_text()), find_system(system).device
    assert file in device.reached
    assert device.read_rate == pytest.approx(measured["copy_tb_per_s"] * 1e12, rel=0.01)
    assert device.product_rate(16) == pytest.approx(measured["matmul_tflop_per_s"] * 1e12, rel=0.02)


def test_small_sums_over_two_h200_take_what_was_measured():
    for result in json.loads((RESULTS / "all-reduce-2-gpus-nvidia-h200.json").read_text())["results"]:
        if result["bytes"] <= 4 * 2**20:
            seconds = H200.links.sum_seconds(result["bytes"], 2)
            assert seconds == pytest.approx(result["us"]["ours with norm"] * 1e-6, rel=0.25), result["bytes"]


def test_every_number_of_a_system_has_a_source():
    for system in SYSTEMS:
        links = [system.links.inside] + ([system.links.between] if system.links.between else [])
        sources = [system.device.printed, system.device.reached, *(link.source for link in links)]
        for source in sources:
            assert any(word in source for word in ("measured", "assumed", "published", "data sheet")), source
        assert (system.num_devices > system.links.node_size) == (system.links.between is not None)


def test_an_unknown_system_names_those_that_are_known():
    assert find_system("8xh200") is H200
    with pytest.raises(UnknownSystemError, match=r"no system 'DGX'; 8xMI300X, .*GB200-NVL72 can be simulated"):
        find_system("DGX")


def test_a_matrix_is_as_large_as_its_format():
    stored = Matrix((256, 512), "fp8 128x128", stored_bytes=256 * 512 + 32, is_rounded=False)
    sizes = {name: stored.num_bytes(name) for name in (AS_STORED, "bfloat16", "int4", "float32")}
    assert sizes == {AS_STORED: 131104, "bfloat16": 262144, "int4": 262144, "float32": 524288}
    assert replace(stored, is_rounded=True).num_bytes("int4") < 0.7 * 131072
