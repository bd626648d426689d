"""`check_kv_transfer`: whether an engine can do for another one what a request asks, or take what it names."""

from __future__ import annotations

from atom_core.errors import InvalidRequestError
from atom_core.kv_transfer.config import KVRole
from atom_core.messages import KVTransferParams, SamplingParams

_NAME = "kv_transfer_params"
MAX_TEXT = 256


def check_kv_transfer(params: SamplingParams, role: KVRole | None, num_prompts: int) -> None:
    """Raise InvalidRequestError unless this engine has the part that a request gives it."""
    transfer = params.kv_transfer_params
    if transfer is None:
        return
    if not isinstance(transfer, KVTransferParams):
        raise InvalidRequestError(f"{_NAME} is a {type(transfer).__name__}; it must be KVTransferParams", _NAME)
    if not (transfer.do_remote_decode or transfer.do_remote_prefill):
        return
    if transfer.do_remote_decode and transfer.do_remote_prefill:
        raise InvalidRequestError(f"{_NAME}: do_remote_decode and do_remote_prefill exclude each other", _NAME)
    if num_prompts > 1:
        raise InvalidRequestError(f"{_NAME} are of one prompt, and there are {num_prompts}: send each by itself", _NAME)
    asked, needed = (
        ("do_remote_decode", "kv_consumer") if transfer.do_remote_decode else ("do_remote_prefill", "kv_producer")
    )
    if role is None or role == needed:
        has = "has no kv_transfer_config" if role is None else f"has the kv_role {role}"
        raise InvalidRequestError(f"{_NAME}: {asked} is asked for, and this engine {has}", _NAME)
    if transfer.do_remote_prefill:
        _check_named(transfer)


def _check_named(transfer: KVTransferParams) -> None:
    texts = {name: getattr(transfer, name) for name in ("remote_engine_id", "remote_request_id", "remote_host")}
    for name, text in texts.items():
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
            raise InvalidRequestError(f"{_NAME}: {name} must be a text of 1 to {MAX_TEXT} characters", _NAME)
    if type(transfer.remote_port) is not int or not 1 <= transfer.remote_port <= 65535:
        raise InvalidRequestError(f"{_NAME}: remote_port must be from 1 to 65535", _NAME)
    for name in ("remote_num_tokens", "remote_num_followed_tokens"):
        if type(count := getattr(transfer, name)) is not int or not 0 <= count < 2**31:
            raise InvalidRequestError(f"{_NAME}: {name} must be from 0 to {2**31 - 1}", _NAME)
