"""Published quantized checkpoints build, and every tensor of their files is taken or knowingly passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom_models import BuildContext, build_model, open_checkpoint
from atom_models.weights.accounting import check_fit
from atom_models.weights.safetensors_source import read_headers
from published_checkpoints import CHECKPOINTS, expand


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_tensor_is_taken_or_knowingly_passed_over(name: str, tmp_path: Path):
    published = CHECKPOINTS[name]
    checkpoint = open_checkpoint(published.write(tmp_path))
    context = BuildContext(dtype=torch.bfloat16, device="meta", max_model_len=16)
    headers = read_headers(checkpoint.path)
    model = build_model(checkpoint, context)
    accounting = check_fit(model, headers.tensors.keys(), name, headers)
    passed_over = headers.tensors.keys() - accounting.owners.keys()
    expected = [one for pattern in published.passed_over for one in expand(pattern)]
    whole_layers = tuple(one for one in expected if one.endswith("."))
    assert {one for one in passed_over if not one.startswith(whole_layers)} == set(expected) - set(whole_layers)
