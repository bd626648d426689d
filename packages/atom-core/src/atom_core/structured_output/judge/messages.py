"""What is said between the judge and the process that asks it, as JSON."""

from __future__ import annotations

import msgspec

from atom_core.messages import StructuredOutputParams
from atom_core.structured_output.constraints.choice import BackendSetting


class Question(msgspec.Struct, frozen=True):
    """Whether a backend that `setting` allows can follow `params`."""

    params: StructuredOutputParams
    setting: BackendSetting


class Verdict(msgspec.Struct, frozen=True):
    """`error` says why not, None where one can."""

    error: str | None = None


QUESTION = msgspec.json.Decoder(Question)
VERDICT = msgspec.json.Decoder(Verdict)
ENCODER = msgspec.json.Encoder()
