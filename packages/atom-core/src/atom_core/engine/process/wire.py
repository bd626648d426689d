"""What the API process and the engine's process say to each other. msgspec structs over ZMQ; never pickle."""

from __future__ import annotations

import msgspec

from atom_core.engine.info import EngineInfo
from atom_core.failure import Failure
from atom_core.messages import EngineOutput, NamedAdapter, RequestState, StepStats, Submission


class AddRequests(msgspec.Struct, frozen=True, tag=True):
    """Queue all samples of what one caller submitted."""

    submission: Submission


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """End requests."""

    request_ids: list[str]


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Start or stop a trace; a `Reply` follows."""

    call_id: int
    start: bool


class ListRequests(msgspec.Struct, frozen=True, tag=True):
    """Where does each request stand? A `Reply` with `requests` follows."""

    call_id: int


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget what is cached; a `Reply` follows."""

    call_id: int


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Take no further step, or go on; a `Reply` follows once no step runs. Requests may come and be ended meanwhile."""

    call_id: int
    is_paused: bool


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Give memory back at a level (see `EngineCore.sleep`); a `Reply` follows. No request may be open."""

    call_id: int
    level: int


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """Take memory again; a `Reply` follows."""

    call_id: int


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Read an adapter (see `EngineCore.load_adapter`); a `Reply` follows."""

    call_id: int
    adapter: NamedAdapter


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Let go of an adapter after its last request; a `Reply` follows at once."""

    call_id: int
    adapter_id: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Leave the loop."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start, or died."""

    failure: Failure


class News(msgspec.Struct, frozen=True, tag=True):
    """What a step brought, or a part of it (see `news_slices`)."""

    outputs: list[EngineOutput]
    stats: StepStats


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to a call; `error` is None if it worked."""

    call_id: int
    error: str | None = None
    requests: list[RequestState] = []


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """The engine's process is alive.

    `seconds_without_step` counts while a step is waited for: 0 when idle, and captures and compilations stop it.
    `num_steps` have ended so far, the longest of them after `longest_step` seconds. `stopped_ranks` are workers that a
    signal has stopped while a step waits for them.
    """

    seconds_without_step: float
    stats: StepStats
    num_steps: int = 0
    longest_step: float = 0.0
    stopped_ranks: tuple[int, ...] = ()


class EngineStart(msgspec.Struct, frozen=True):
    """The first line that the engine's process reads: its settings (keywords of `EngineArgs`) and its sockets.

    `data_parallel_rank` is its number among engines that share the requests, and `meeting_folder` where those find each
    other that share their experts too.
    """

    settings: dict[str, object]
    model_path: str
    folder: str
    data_parallel_rank: int = 0
    meeting_folder: str | None = None


ToEngine = (
    AddRequests
    | AbortRequests
    | Profile
    | ListRequests
    | ResetPrefixCache
    | Pause
    | Sleep
    | WakeUp
    | LoadAdapter
    | UnloadAdapter
    | Shutdown
)
FromEngine = Ready | Failed | News | Reply | Pulse

ENCODER = msgspec.msgpack.Encoder()
TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)


def request_address(folder: str) -> str:
    """Where the API process sends from."""
    return f"ipc://{folder}/requests"


def news_address(folder: str) -> str:
    """Where the API process receives."""
    return f"ipc://{folder}/news"
