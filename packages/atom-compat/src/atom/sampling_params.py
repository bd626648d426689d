"""`SamplingParams`, which takes `stop` too."""

from __future__ import annotations

from msgspec.structs import force_setattr

import atom_core


class SamplingParams(atom_core.SamplingParams, frozen=True, omit_defaults=True):
    """See `atom_core.SamplingParams`.

    Attributes:
        stop: `stop_strings` under another name, or a single one.
    """

    stop: str | list[str] | None = None

    def __post_init__(self) -> None:
        if self.stop is not None:
            if self.stop_strings is not None:
                raise ValueError("stop and stop_strings mean the same: give one of them")
            # Frozen for all others: nobody has seen the object yet.
            force_setattr(self, "stop_strings", [self.stop] if isinstance(self.stop, str) else list(self.stop))
            force_setattr(self, "stop", None)
