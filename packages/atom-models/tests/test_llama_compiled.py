"""Tracing: the whole model is one graph with a dynamic number of tokens, and computes what eager code does."""

from __future__ import annotations

import pytest
import torch

from atom_models import load_model
from atom_models.paged_run import PagedRun, SequenceStep


@pytest.mark.parametrize(("dtype", "quantization"), [("float32", None), ("bfloat16", "int8")])
def test_one_graph_with_a_dynamic_number_of_tokens_equals_eager(tiny_llama, dtype, quantization):
    loaded = load_model(tiny_llama, dtype=dtype, quantization=quantization)
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(loaded.model, fullgraph=True, backend=backend, dynamic=True)
    run, traced = PagedRun(loaded.model, 8), PagedRun(loaded.model, 8)
    traced.model = compiled
    cached = 0
    for length in (21, 9, 2, 33):
        step = [SequenceStep(list(range(3, 3 + length)), cached, range(8))]
        assert torch.equal(run.step(step)[0], traced.step(step)[0])
        cached += length
    assert len(graphs) == 1
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert sum("atom_models.mix" in target for target in targets) == 2


def test_a_single_token_is_traced_too(tiny_llama):
    loaded = load_model(tiny_llama)
    torch.compiler.reset()
    run, traced = PagedRun(loaded.model, 1), PagedRun(loaded.model, 1)
    traced.model = torch.compile(loaded.model, fullgraph=True, backend="eager")
    step = [SequenceStep([7], 0, [0])]
    assert torch.equal(run.step(step)[0], traced.step(step)[0])
