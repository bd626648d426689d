"""`KVTransferParams`: what a request says of an engine that computes its prompt for another one, in vLLM's spelling."""

from __future__ import annotations

import msgspec


class KVTransferParams(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """In a request, and in the answer of the engine that computed its prompt; who passes it on changes nothing.

    Attributes:
        do_remote_decode: another engine goes on from the prompt: keep its blocks for that one.
        do_remote_prefill: another engine has computed the prompt: fetch its blocks there. All other fields name them.
        remote_engine_id: that engine, from its start to its end.
        remote_request_id: the prompt there; a name that nobody can guess.
        remote_host, remote_port: where its first rank sends blocks from.
        remote_num_tokens: leading tokens of the prompt that are there.
        remote_num_followed_tokens: the part of them that a model that drafts has followed.
        remote_block_ids, tp_size: what other engines say beside that; they mean nothing here.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int = 0
    remote_num_followed_tokens: int = 0
    remote_block_ids: list[int] | None = None
    tp_size: int | None = None
