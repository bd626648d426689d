"""`sample_slots` draws tokens with parameters that lie on the device; the host is not waited for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.sampling import triton_backend
from atom_kernels.sampling.philox import philox_uniform
from atom_kernels.sampling.sampler import sample


@dataclass(frozen=True)
class SamplingTables:
    """Parameters of requests, a row ("slot") each: tensors ``[max_num_seqs]`` on the device of the logits.

    Attributes:
        temperature: float32, 0 for greedy.
        top_k: int32, 0 or less or V or more for all.
        top_p: float32, 1 for all.
        min_p: float32, 0 for all.
        seed: int64, the key of the random numbers.
        sample_index: int64, which of a request's ``n`` samples.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    sample_index: torch.Tensor


def sample_slots(
    logits_nV: torch.Tensor,
    tables: SamplingTables,
    slots_n: torch.Tensor,
    positions_n: torch.Tensor,
    *,
    filters: bool,
) -> torch.Tensor:
    """`sample` with the parameters of each row's slot and the `philox_uniform` number of its position.

    On a GPU it neither synchronizes nor looks at values on the host, so that it can be captured in a graph.

    Args:
        logits_nV: float32.
        tables: of all requests.
        slots_n: integers, the row of `tables` for each row of logits.
        positions_n: integers, the position of the token to draw.
        filters: False promises that no row uses top-k, top-p or min-p, whose tables are then not read.

    Returns:
        int64 ``[n]``.
    """
    if logits_nV.device.type == "cuda" and triton_backend.unavailable() is None:
        return triton_backend.sample_slots_by_triton(logits_nV, tables, slots_n, positions_n, filters=filters)
    slots_n = slots_n.long()
    temperature_n = tables.temperature[slots_n]
    uniform_n = philox_uniform(tables.seed[slots_n], tables.sample_index[slots_n], positions_n.long())
    if filters:
        top_k_n, top_p_n, min_p_n = (table[slots_n] for table in (tables.top_k, tables.top_p, tables.min_p))
    else:
        top_k_n, top_p_n = torch.zeros_like(slots_n), torch.ones_like(temperature_n)
        min_p_n = torch.zeros_like(temperature_n)
    return sample(logits_nV, uniform_n, temperature_n, top_k_n.long(), top_p_n, min_p_n)
