"""A mixture that ranks share sends its sums of long prompts a run of tokens at a time."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.platform import detect_platform
from atom_kernels.protocols import SINGLE_RANK
from atom_kernels.settings import triton_interpret
from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import MoE, MoEConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.mixture.moe_config import SharedExpertsConfig
from atom_models.layers.norms.residual import Sent, summed
from forked_ranks import run_ranks, shared_tensor

pytestmark = [
    pytest.mark.skipif(not triton_interpret(), reason="its ranks are processes of this machine"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
HIDDEN, NUM_ROWS = 24, 700


def make_mixture(ranks=SINGLE_RANK):
    platform = detect_platform()
    context = BuildContext(dtype=torch.float32, platform=platform, device=platform.device, groups=Groups(ranks))
    mixture = MoE(MoEConfig(4, 2, HIDDEN, 8, shared_experts=SharedExpertsConfig(16)), context, prefix="mlp")
    generator = torch.Generator().manual_seed(0)
    for layer in loadable(mixture):
        for name, expected in expected_weights(layer).items():
            layer.load_shard(name, torch.randn(expected.shape, generator=generator) * 0.3)
        layer.finish()
    return mixture


def test_both_ranks_have_the_sum_of_one():
    x = torch.randn(NUM_ROWS, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = summed(make_mixture()(x))
    results = shared_tensor(2 * expected.nbytes).view(torch.float32).view(2, *expected.shape)
    runs = shared_tensor(2 * 3 * 8).view(torch.int64).view(2, -1)

    def work(rank):
        mixture, lengths = make_mixture(rank), []
        in_runs = mixture.experts.in_runs

        def watched(*inputs):
            compute = in_runs(*inputs)
            return lambda run: lengths.append(len(rows := compute(run))) or rows

        mixture.experts.in_runs = watched
        term = mixture(x)
        assert isinstance(term, Sent)
        results[rank.rank], runs[rank.rank] = summed(term), torch.tensor(lengths)

    run_ranks(2, 1 << 14, work)
    assert runs.tolist() == [[256, 256, 188]] * 2
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], expected, atol=2e-5, rtol=1e-5)
