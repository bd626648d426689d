"""How a command ends that could not do its work: one line, and an exit code by the kind of failure."""

from __future__ import annotations

from atom_core import InvalidRequestError
from atom_core.failure import Failure, FailureKind
from atom_server.connections.listen import AddressError
from atom_server.prompts.chat_template import ChatTemplateError

# 0 is success, 130 Ctrl-C, 141 a closed pipe; a wrong flag ends with 2 too.
EXIT_CODES: dict[FailureKind, int] = {
    "unexpected": 1,
    "settings": 2,
    "model": 3,
    "address": 4,
    "resources": 5,
    "engine": 6,
}


def failure_of(error: Exception) -> Failure:
    """What `error` means, with the kinds that only this package knows."""
    if isinstance(error, AddressError):
        return Failure("address", str(error))
    if isinstance(error, InvalidRequestError | ChatTemplateError):
        return Failure("settings", str(error))
    return Failure.of(error)


def exit_code_of(failure: Failure) -> int:
    """What the process ends with."""
    return EXIT_CODES[failure.kind]
