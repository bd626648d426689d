"""Absorbed latent attention."""

import torch

from tests.aiter_emulator.semantics import mla
from tests.aiter_emulator.semantics.binding import emulated
from tests.aiter_emulator.semantics.checks import refuse_unless
from tests.aiter_emulator.semantics.work import Buffers


@emulated
def mla_decode_fwd(
    q,
    kv_buffer,
    o,
    qo_indptr,
    kv_indptr,
    kv_indices,
    kv_last_page_lens,
    max_seqlen_q,
    page_size=1,
    nhead_kv=1,
    sm_scale=None,
    logit_cap=0.0,
    num_kv_splits=None,
    num_kv_splits_indptr=None,
    work_meta_data=None,
    work_indptr=None,
    work_info_set=None,
    reduce_indptr=None,
    reduce_final_map=None,
    reduce_partial_map=None,
    q_scale=None,
    kv_scale=None,
    intra_batch_mode=False,
    return_logits=False,
    return_lse=False,
    g_kv_indptr=None,
    cp_world_size=1,
    cp_rank=0,
    causal=True,
):
    if num_kv_splits_indptr is not None or intra_batch_mode or cp_world_size != 1 or not causal:
        raise NotImplementedError("the emulator has causal mla_decode_fwd without context parallelism")
    refuse_unless(nhead_kv == 1, "only support num_kv_heads==1 for now")
    metadata = None
    if work_meta_data is not None:
        metadata = Buffers(
            work_meta_data, work_indptr, work_info_set, reduce_indptr, reduce_final_map, reduce_partial_map
        )
    sums = mla.decode(
        q,
        kv_buffer,
        o,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_last_page_lens,
        max_seqlen_q,
        release="git",
        page_size=page_size,
        sm_scale=sm_scale,
        logit_cap=logit_cap,
        metadata=metadata,
        q_scale=q_scale,
        kv_scale=kv_scale,
        num_kv_splits=num_kv_splits,
        return_lse=return_lse,
    )
    scratch = torch.full((q.shape[0], 1, q.shape[1], o.shape[2]), float("nan"))
    return scratch, sums


@emulated
def mla_prefill_fwd(
    q,
    kv_buffer,
    o,
    qo_indptr,
    kv_indptr,
    kv_indices,
    kv_last_page_lens,
    max_seqlen_q,
    sm_scale=None,
    logit_cap=0.0,
    num_kv_splits=None,
):
    return mla.prefill(
        q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q, sm_scale, logit_cap
    )
