"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NamedTuple


class Torchrun(NamedTuple):
    """What torchrun tells a process that it started.

    Attributes:
        rank, size: its number among all processes, and how many there are.
        local_size: how many there are on each host.
        host, port: where the processes meet.
    """

    rank: int
    size: int
    local_size: int
    host: str
    port: int

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes are on this host."""
        return self.local_size == self.size


def profiler_dir() -> str | None:
    """``ATOM_TORCH_PROFILER_DIR``: where profiler traces go when no option says so."""
    return os.environ.get("ATOM_TORCH_PROFILER_DIR", "").strip() or None


def profiler_more() -> bool:
    """Whether ``ATOM_PROFILER_MORE`` asks for shapes, stacks and memory in traces."""
    return os.environ.get("ATOM_PROFILER_MORE", "").strip().lower() in ("1", "true", "yes", "on")


def log_level() -> str:
    """``ATOM_LOG_LEVEL`` of the engine process: DEBUG, INFO, WARNING or ERROR; INFO unless set to one of them."""
    level = os.environ.get("ATOM_LOG_LEVEL", "").strip().upper()
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO"


def omp_num_threads() -> int | None:
    """``OMP_NUM_THREADS``, which bounds the threads of compute where it is set to a number."""
    text = os.environ.get("OMP_NUM_THREADS", "").strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def child_environment(num_threads: int | None) -> dict[str, str]:
    """The environment of the engine's process; `num_threads` None leaves its threads to what this one was given."""
    return {**os.environ} if num_threads is None else {**os.environ, "OMP_NUM_THREADS": str(num_threads)}


def rank_environment(num_threads: int, interface: str = "lo") -> dict[str, str]:
    """The environment of a rank.

    Ranks talk over one network interface, unless ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME`` names another. gloo
    and NCCL authenticate nobody, so no machine but those of the ranks may reach their ports: where all are on one host
    it is the loopback interface. What ranks share of their memory is not multicast, unless
    ``TORCH_SYMM_MEM_DISABLE_MULTICAST`` says so: no kernel of ours makes use of it.
    """
    interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interface)
    return {**interfaces, "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", **child_environment(num_threads)}


def cache_dir() -> Path:
    """What can be made again: ``ATOM_CACHE_DIR``, ``$XDG_CACHE_HOME/atom`` or ``~/.cache/atom``."""
    own = os.environ.get("ATOM_CACHE_DIR", "").strip()
    if own:
        return Path(own).expanduser()
    root = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(root) if root else Path.home() / ".cache") / "atom"


def keep_compiled_in(folder: Path) -> Path:
    """Have inductor keep its files in `folder`, unless ``TORCHINDUCTOR_CACHE_DIR`` names another.

    Returns the folder that it is.

    Raises:
        OSError: it cannot be made.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
    return Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder)))


def tokenize_in_calling_thread() -> None:
    """Have texts tokenized in the thread that asks, unless ``TOKENIZERS_PARALLELISM`` says otherwise.

    In the library's own pool of threads long texts would keep short ones waiting.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def names_rank_interfaces() -> bool:
    """Whether ``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME`` say over which networks ranks talk."""
    return all(os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))


def with_devices(environment: dict[str, str], devices: str) -> dict[str, str]:
    """An environment with the GPUs of all ranks of a node, where Ray has named a single one in this process's.

    Ranks of a node have to see each other's GPUs to reach their memory. Ray names GPUs in ``CUDA_VISIBLE_DEVICES``,
    ``HIP_VISIBLE_DEVICES`` or ``ROCR_VISIBLE_DEVICES``.
    """
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return {**environment, **({name: devices for name in names if name in environment} if devices else {})}


def ray_address() -> str | None:
    """``RAY_ADDRESS``: the Ray cluster whose nodes have the ranks."""
    return os.environ.get("RAY_ADDRESS", "").strip() or None


def prepare_ray() -> None:
    """Before Ray is imported, have it report to nobody, unless ``RAY_USAGE_STATS_ENABLED`` says so.

    ``RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO`` is 0 unless it is set: actors without GPUs keep the variables that name GPUs.

    A cluster of this host alone, which Ray starts for us, listens on the loopback interface, since
    ``RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`` is 0, by which other systems are kept from networks. It asks for a token of
    its own, unless ``RAY_AUTH_MODE`` says otherwise or ``RAY_AUTH_TOKEN`` is another. Nothing is changed about that
    where ``RAY_ADDRESS``, or a file in ``RAY_TMPDIR`` or /tmp, tells of a cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    running = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    if ray_address() is None and not running.exists():
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def torchrun() -> Torchrun | None:
    """What torchrun said to this process, one of several, where ``TORCHELASTIC_RUN_ID`` says that it started it.

    That is ``RANK``, ``WORLD_SIZE``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    numbers = [int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()]
    if "TORCHELASTIC_RUN_ID" not in os.environ or len(numbers) < len(names) or numbers[1] == 1:
        return None
    rank, size, local_size, port = numbers
    return Torchrun(rank, size, local_size, os.environ.get("MASTER_ADDR") or "127.0.0.1", port)


def ranks_secret() -> str | None:
    """``ATOM_RANKS_SECRET``: what the processes of torchrun on several nodes know each other by."""
    return os.environ.get("ATOM_RANKS_SECRET", "").strip() or None
