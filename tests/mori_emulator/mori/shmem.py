"""Memory that ranks share: joined once, by a group of torch.distributed that has a name."""

from __future__ import annotations

from mori.process import here


def shmem_torch_process_group_init(group_name: str) -> None:
    """All ranks join. A name that torch.distributed does not know is an error there, and joining twice is one here."""
    if not group_name or group_name != here.name:
        raise RuntimeError(f"no process group is registered under {group_name!r}")
    if here.has_joined:
        raise RuntimeError("this process has joined before")
    here.all_give("join")
    here.has_joined = True
