"""What the engine and the processes of its ranks say to each other. msgspec structs over sockets; never pickle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from atom_core.config.sections import EngineConfig
from atom_core.failure import Failure
from atom_core.messages import ModelOutput, NamedAdapter, SchedulerOutput
from atom_core.worker.ranks.meeting import Meeting
from atom_core.worker.runner import RunnerInfo
from atom_kernels.protocols import GroupSpec, Pages, Slots


class KeepStore(msgspec.Struct, frozen=True, tag=True):
    """Listen at an address of the rank's host, for the store in which ranks find each other; `StoreKept` follows."""

    host: str


class Join(msgspec.Struct, frozen=True, tag=True):
    """Which rank the process is, on what device, and where it meets the others; `Joined` follows."""

    rank: int
    device: str
    meeting: Meeting


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model of a configuration, in the place of an earlier one; `Loaded` follows."""

    config: EngineConfig


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Compute a step."""

    step: SchedulerOutput


class Sample(msgspec.Struct, frozen=True, tag=True):
    """Sample the step that was computed last; the first rank of the last stage answers with `Sampled`.

    `masks` has the words of each mask, by request id: int32 in this machine's order of bytes.
    """

    masks: dict[str, bytes] | None = None


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Use idle time (see `Executor.prepare`); `Prepared` follows."""


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Start or stop a trace; `Profiled` follows."""

    start: bool


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Give memory back (see `Executor.sleep`); `Rested` follows."""

    level: int


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """Take it again; `Rested` follows."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Read an adapter; `AdapterTaken` follows."""

    adapter: NamedAdapter


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Let go of an adapter; `AdapterTaken` follows."""

    adapter_id: int


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class StoreKept(msgspec.Struct, frozen=True, tag=True):
    """Where the rank listens, as `StoreAddress` has it."""

    port: int
    descriptor: int


class Joined(msgspec.Struct, frozen=True, tag=True):
    """All ranks have met."""


class Kept(msgspec.Struct, frozen=True):
    """What a group of layers keeps: a `GroupSpec` by its kind and its fields."""

    kind: Literal["Pages", "Slots"]
    fields: dict[str, int | None]

    @classmethod
    def of(cls, spec: Any) -> Kept:
        """The message about a group of layers."""
        return cls("Slots" if spec.in_slots else "Pages", asdict(spec))

    @property
    def spec(self) -> GroupSpec:
        """The group that was sent."""
        return msgspec.convert(self.fields, {"Pages": Pages, "Slots": Slots}[self.kind])


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The rank takes steps; the fields are those of `RunnerInfo`."""

    num_blocks: int
    max_model_len: int
    groups: tuple[Kept, ...]
    timings: dict[str, float]
    choices: list[str]
    num_slots: int
    num_snapshots: int
    launches: bool
    offload_places: tuple[int, int]
    send_places: int

    @classmethod
    def of(cls, info: RunnerInfo) -> Loaded:
        """The message about what a runner found out."""
        fields: dict[str, Any] = msgspec.structs.asdict(info)
        fields["groups"] = tuple(map(Kept.of, info.groups))
        return cls(**fields)

    @property
    def info(self) -> RunnerInfo:
        """What the runner found out."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        fields["groups"] = tuple(kept.spec for kept in self.groups)
        return RunnerInfo(**fields)


class Sampled(msgspec.Struct, frozen=True, tag=True):
    """The results of a step."""

    output: ModelOutput


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Whether anything is left to prepare."""

    is_left: bool


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """`error` is None if it worked."""

    error: str | None


class Rested(msgspec.Struct, frozen=True, tag=True):
    """The rank sleeps, or works again."""


class AdapterTaken(msgspec.Struct, frozen=True, tag=True):
    """`error` is None if it worked."""

    error: str | None = None


class Preparing(msgspec.Struct, frozen=True, tag=True):
    """A capture or a compilation has begun, or ended. Answers nothing."""

    is_preparing: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The rank cannot go on, and ends. `lost_others`: since another one did."""

    failure: Failure
    lost_others: bool = False


ToRank = (
    KeepStore
    | Join
    | Load
    | Forward
    | Sample
    | Prepare
    | Profile
    | Sleep
    | WakeUp
    | LoadAdapter
    | UnloadAdapter
    | Leave
)
Answer = StoreKept | Joined | Loaded | Sampled | Prepared | Profiled | Rested | AdapterTaken
FromRank = Answer | Preparing | Failed


def encode(message: ToRank | FromRank) -> bytes:
    """A message as it is sent."""
    return _ENCODER.encode(message)


def decode_to_rank(data: bytes) -> ToRank:
    """What the engine sent."""
    return _TO_RANK.decode(data)


def decode_from_rank(data: bytes) -> FromRank:
    """What a rank sent."""
    return _FROM_RANK.decode(data)


def _written(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} does not cross processes")


def _read(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} does not cross processes")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_written)
_TO_RANK = msgspec.msgpack.Decoder(ToRank, dec_hook=_read)
_FROM_RANK = msgspec.msgpack.Decoder(FromRank)
