"""What counts as a word of ours in a log of vLLM's, wherever the checkout is."""

from __future__ import annotations

import pytest

from tests.with_vllm.traces import lines_of_ours


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-22 [__init__.py:36] - atom -> atom_vllm.register:register_platform",
        "INFO 11-22 [__init__.py:36] - atom_model_registry -> atom_vllm.register:register_model",
        "INFO loading weights from '/home/me/atom/.vllm/0.27.1/model'",
        "WARNING cache at /home/me/ATOM/.cache (model=/tmp/atom/x, draft=None)",
        "/work/atom/.vllm/0.27.1/lib/python3.11/site-packages/torch/x.py:12: UserWarning: slow",
        "INFO attention is CPU_ATTN",
    ],
)
def test_paths_and_the_list_of_plugins_are_not_ours(line: str):
    assert lines_of_ours(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "INFO Use atom attention backend",
        "INFO atom-vllm 0.1.0 is active in vLLM 0.27.1: 12 architectures",
        "DEBUG Register model LlamaForCausalLM to vLLM with atom_vllm.models.model_wrapper:ATOM_LlamaForCausalLM",
        "INFO model class ATOMForCausalLM from /home/me/vllm",
    ],
)
def test_what_the_plugin_says_is_ours(line: str):
    assert lines_of_ours(f"INFO attention is CPU_ATTN\n{line}") == [line]
