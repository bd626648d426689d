"""Published quantized checkpoints build, and every tensor of their files is taken or knowingly passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom_models import BuildContext, CheckpointError, build_model, open_checkpoint
from atom_models.weights.filling import check_fit
from atom_models.weights.safetensors_source import read_headers
from published_catalog import CHECKPOINTS
from published_checkpoints import PublishedCheckpoint, expand
from published_hybrids import HYBRIDS

# One of each number format. Their first layers have all experts; the tensors of all of both would take half a minute.
WHOLE = ["deepseek-ai/DeepSeek-V3.2", "moonshotai/Kimi-K2-Thinking", "amd/DeepSeek-R1-0528-MXFP4"]
LARGE = [name for name, published in CHECKPOINTS.items() if "experts.{" in "".join(published.linears)]


def check(published: PublishedCheckpoint, folder: Path) -> None:
    checkpoint = open_checkpoint(published.write(folder))
    context = BuildContext(dtype=torch.bfloat16, device="meta", max_model_len=16)
    headers = read_headers(checkpoint.path)
    assert headers is not None
    model = build_model(checkpoint, context)
    taken = check_fit(model, headers.tensors.keys(), checkpoint.path.name, headers)
    passed_over = headers.tensors.keys() - set(taken)
    expected = [one for pattern in published.passed_over for one in expand(pattern)]
    whole_layers = tuple(one for one in expected if one.endswith("."))
    assert {one for one in passed_over if not one.startswith(whole_layers)} == set(expected) - set(whole_layers)


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name not in LARGE])
def test_every_tensor_is_taken_or_knowingly_passed_over(name: str, tmp_path: Path):
    check(CHECKPOINTS[name], tmp_path)


@pytest.mark.parametrize("name", LARGE)
def test_so_is_every_tensor_of_the_first_layers_of_large_mixtures(name: str, tmp_path: Path):
    check(CHECKPOINTS[name].first_layers(5), tmp_path)


@pytest.mark.parametrize("name", HYBRIDS)
def test_so_is_every_tensor_of_sparse_attention_and_of_delta_nets(name: str, tmp_path: Path):
    check(HYBRIDS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_so_is_every_tensor_of_all_layers_with_fewer_experts(name: str, tmp_path: Path):
    check(CHECKPOINTS[name].few_experts(16), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.7.mlp.up_proj.weight_scale": None}, r"model\.layers\.7\.mlp\.up_proj is stored as input_scale"),
        ({"model.layers.7.mlp.up_proj.weight_scale": ("BF16", (64,))}, r"up_proj\.weight_scale is \[64\], but"),
        ({"model.layers.7.mlp.up_proj.weight": ("F8_E4M3", (4096, 4096))}, r"up_proj\.weight is \[4096, 4096\], but"),
        ({"model.layers.7.mlp.zeros": ("F32", (1,))}, r"1 unexpected weight: model\.layers\.7\.mlp\.zeros"),
        ({"model.norm.weight": None}, r"1 missing weight: model\.norm\.weight"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, message, tmp_path: Path):
    published = CHECKPOINTS["RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"]
    with pytest.raises(CheckpointError, match=message):
        check(replace(published, changed=change), tmp_path)
