"""The benchmark of kernels: what it would measure, and how it tells what it found."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from atom_kernels.attention.index.cases import make_problem as make_index_problem
from atom_kernels.attention.index.cases import make_step as make_index_step
from atom_kernels.attention.mla.cases import make_problem as make_latent_problem
from atom_kernels.attention.mla.reference import latent_attention
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.reference import paged_attention
from atom_kernels.attention.sparse import sparse_latent_attention
from atom_kernels.attention.sparse.cases import make_problem as make_sparse_problem
from atom_kernels.linear import LinearProblem, linear
from atom_kernels.mixers import select_mixer
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.contract import experts
from benchmarks import kernels, report
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.kernels import page
from benchmarks.kernels.attention import latent_work, paged_work
from benchmarks.kernels.dense import plain_linear
from benchmarks.kernels.mixture import plain_experts
from benchmarks.kernels.plain_attention import plain_attention, plain_chosen, plain_index, plain_latent
from benchmarks.kernels.shapes import MODELS

CEILINGS = Ceilings("A Fine GPU", 2e12, 500e12)
RESULT = {
    "operator": "linear",
    "model": "Qwen3-8B",
    "case": "o_proj, rows 1",
    "backend": "torch linear",
    "us": 10.0,
    "copy_share": 0.5,
    "matmul_share": 0.01,
    "torch_us": 20.0,
}


def test_every_model_is_measured_in_every_operator_that_it_has_and_no_case_twice():
    cases = [(case.operator, case.model, case.label) for case in kernels.all_cases(list(MODELS), (1, 32))]
    assert len(set(cases)) == len(cases)
    operators = {model: {operator for operator, other, _ in cases if other == model} for model in MODELS}
    dense = {"attention", "rms_norm", "add_rms_norm", "gated_activation", "linear", "sample"}
    assert operators["Qwen3-0.6B"] == dense
    assert operators["gpt-oss-20b"] == dense - {"gated_activation"} | {"moe_route", "moe_experts"}
    # The same vocabulary as that of the smaller one.
    assert operators["Qwen3-8B"] == dense - {"sample"}
    assert "latent_attention" in operators["DeepSeek-V2-Lite"]


def test_delta_nets_are_measured_with_the_states_that_they_read_and_write():
    cases = {(case.operator, case.label): case for case in kernels.all_cases(["Qwen3-Next-80B"], (64, 1000))}
    assert len(cases) == 4
    state, row = 32 * 128 * 128 * 4, (8192 + 32 + 32 + 4096) * 2
    assert cases["gated_delta", "decode 64"].work.num_bytes == 64 * (2 * state + row)
    assert cases["gated_delta", "prompt of 1000"].work.num_bytes == state + 1000 * row
    assert cases["short_conv", "decode 64"].work.num_bytes == (64 * (2 + 2 * 3) + 4) * 8192 * 2


def test_sparse_attention_is_measured_with_the_keys_that_it_scores_and_the_latents_that_it_reads():
    cases = {case.operator: case for case in kernels.all_cases(["DeepSeek-V3.2"], (4, 1000))}
    keys, latents = 4 * 8192 * 128 * 2, 4 * 2048 * 576 * 2
    assert cases["lightning_index"].work.num_bytes == pytest.approx(keys, rel=0.02)
    assert cases["lightning_index"].work.flops == 4 * 8192 * 2 * 64 * 128
    weights = 128 * 512 * (128 + 128) * 2
    assert cases["sparse_latent_attention"].work.num_bytes == pytest.approx(latents + weights, rel=0.02)


def test_the_plain_index_and_what_it_chooses_are_the_contracts():
    problem = make_index_problem(5, 16, 8, 6)
    step = make_index_step(problem, [(1, 13), (1, 13)], prologue=False)
    q, _, head_weights = step.inputs
    expected, cache = step.run(select_mixer(problem, only_backend="reference"))
    keys = cache[step.geometry.block_table[:, 0].long(), :13]
    found = plain_index(problem, q, keys, head_weights)
    scores = torch.einsum("bhl,bh->bl", (q @ keys.mT).relu(), head_weights)
    # `topk` takes any of equal scores.
    assert torch.equal(scores.gather(1, found).sort().values, scores.gather(1, expected.long()).sort().values)

    sparse = make_sparse_problem(4, 16, 8, 6, 10, 6)
    generator = torch.Generator().manual_seed(0)
    q, latents = torch.randn(2, 4, 14, generator=generator), torch.randn(2, 13, 22, generator=generator)
    weight = torch.randn(4 * 18, 16, generator=generator) / 4
    sizes = {"v_head_dim": 10, "scale": sparse.scale}
    wanted = sparse_latent_attention(q, expected, (latents,), weight, *table_of(2, 1, 13), **sizes)
    torch.testing.assert_close(plain_chosen(sparse, q, latents, expected.long(), weight)[:, :, 0], wanted)


def test_the_linears_of_a_model_hold_its_parameters():
    layer = sum(inputs * outputs for name, (inputs, outputs, _) in MODELS["Qwen3-8B"].linears.items())
    head = 4096 * 151936
    # 36 layers, an embedding beside the head, and norms that are left out here.
    assert abs(36 * (layer - head) + 2 * head - 8.19e9) < 0.01e9


def test_a_decode_reads_every_visible_key_once_and_a_prompt_multiplies_each_pair_once():
    problem = make_problem(8, 2, 16, "bfloat16")
    decode = paged_work(problem, 1, 100, 3)
    assert decode.flops == 3 * 4 * 100 * 8 * 16
    assert decode.num_bytes == 3 * (2 * 102 * 2 * 16 + 2 * 8 * 16) * 2
    assert paged_work(problem, 4, 4, 1).flops == 4 * (1 + 2 + 3 + 4) * 8 * 16


def test_a_window_bounds_what_is_read_and_multiplied():
    windowed = paged_work(make_problem(8, 2, 16, "bfloat16", sliding_window=10), 1, 100, 1)
    assert windowed == paged_work(make_problem(8, 2, 16, "bfloat16"), 1, 10, 1)


def test_a_latent_decode_reads_one_latent_for_all_heads():
    few, many = (latent_work(make_latent_problem(heads, 32, 16, 8, 16, "bfloat16"), 1, 1000, 1) for heads in (1, 2))
    assert many.num_bytes - few.num_bytes < 0.1 * few.num_bytes
    assert many.flops == 2 * few.flops


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("queries", [1, 13])
def test_plain_attention_is_the_reference(queries: int, window: int | None, sinks: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    problem = make_problem(6, 2, 8, "float32", sliding_window=window, has_sinks=sinks)
    q, k, v = (
        torch.randn(2, heads, count, 8, generator=generator) for heads, count in ((6, queries), (2, 13), (2, 13))
    )
    sinks_H = torch.randn(6, generator=generator) if sinks else None
    # One block holds all tokens of a request.
    cache = (k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous())
    expected = paged_attention(
        q.transpose(1, 2).flatten(0, 1), cache, *table_of(2, queries, 13),
        scale=problem.scale, sliding_window=window, sinks_H=sinks_H,
    )  # fmt: skip
    found = plain_attention(problem, q, k, v, sinks_H)
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), expected)


@pytest.mark.parametrize("queries", [1, 13])
def test_plain_latent_attention_is_the_reference(queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    problem = make_latent_problem(4, 16, 8, 6, 10, "float32")
    q, latents = torch.randn(2, 4, queries, 14, generator=generator), torch.randn(2, 13, 22, generator=generator)
    weight = torch.randn(4 * 18, 16, generator=generator) / 4
    expected = latent_attention(
        q.transpose(1, 2).flatten(0, 1),
        (latents,),
        weight,
        *table_of(2, queries, 13),
        v_head_dim=10,
        scale=problem.scale,
    )
    found = plain_latent(problem, q, latents, weight)
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), expected)


def table_of(count: int, queries: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where requests of one length begin, their lengths and their blocks, one each."""
    starts = torch.arange(count + 1, dtype=torch.int32) * queries
    return starts, torch.full((count,), length, dtype=torch.int32), torch.arange(count, dtype=torch.int32).unsqueeze(1)


def test_the_plain_experts_are_the_contract_so_that_the_ratio_to_torch_is_fair():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    problem = ExpertsProblem(4, 2, 32, 16, torch.bfloat16, "swiglu_oai", bias=True)
    weights = {
        "gate_up": random(4, 32, 32) / 6,
        "down": random(4, 32, 16) / 4,
        "gate_up_bias": random(4, 32),
        "down_bias": random(4, 32),
    }
    ids = torch.tensor([[0, 3], [3, 1], [1, 0]], dtype=torch.int32)
    inputs = (random(3, 32), torch.rand(3, 2, generator=generator), ids)
    torch.testing.assert_close(
        plain_experts(problem, weights)(*inputs), experts(problem, weights, *inputs), atol=6e-2, rtol=3e-2
    )


def test_the_plain_linear_is_the_contract_as_well():
    generator = torch.Generator().manual_seed(0)
    problem = LinearProblem(16, 8, torch.float32, bias=True, gated=True, neighbors=True)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((3, 16), (16, 16), (16,)))
    norm, residual = torch.randn(16, generator=generator), torch.randn(3, 8, generator=generator)
    expected = linear(x, weight, bias, norm_weight_K=norm, eps=1e-6, norm_offset=0.0, gated=True, residual_TN=residual)
    torch.testing.assert_close(plain_linear(problem, weight, bias)(x, norm, residual), expected)


def test_a_kernel_that_fails_is_told_and_the_rest_is_kept():
    failed = {"operator": "linear", "model": "Qwen3-8B", "case": "lm_head, rows 1", "failure": "RuntimeError: no"}
    document = kernels.make_document([RESULT, failed], CEILINGS)
    table = kernels.kernels_table(document)
    assert "10.0 us" in table
    assert "2.00x our time" in table
    assert "failed" in table
    assert "RuntimeError: no" in table
    assert "A Fine GPU: copies 2.00 TB/s and multiplies 500 TFLOP/s" in table
    assert kernels.describe(failed).endswith("FAILED RuntimeError: no")


def test_our_time_is_kept_where_torch_has_not_the_memory_for_its_own():
    document = kernels.make_document([RESULT | {"torch_us": None, "torch_failure": "out of memory"}], CEILINGS)
    assert "10.0 us" in kernels.kernels_table(document)
    assert "out of memory" in kernels.kernels_table(document)


def test_the_chart_shows_the_better_share_of_the_charted_cases_by_model():
    results = [
        RESULT | {"case": "norm, gate_up_proj, silu, rows 32"},
        RESULT
        | {
            "case": "norm, gate_up_proj, silu, rows 2048",
            "model": "Llama-3-8B",
            "copy_share": 0.2,
            "matmul_share": 0.7,
        },
        RESULT | {"case": "norm, gate_up_proj, silu, rows 32", "model": "Llama-3-8B", "failure": "RuntimeError: no"},
        RESULT,
    ]
    document = kernels.make_document(results, CEILINGS)
    assert [len(found) for found in page.charted(document).values()] == [1, 1]
    text = "".join(ElementTree.fromstring(page.draw(document)).itertext())
    assert "50% of copy rate, 10 us" in text
    assert "70% of matmul rate, 10 us" in text


def test_the_page_keeps_what_is_around_its_tables_and_must_have_their_marks():
    document = kernels.make_document([RESULT], CEILINGS)
    text = page.with_tables(f"before {report.BEGIN} stale {report.END} after", [document])
    assert text.startswith("before")
    assert text.endswith("after")
    assert "Qwen3-8B" in text
    assert "stale" not in text
    with pytest.raises(ValueError, match="lacks the marks"):
        page.with_tables("no marks", [document])
