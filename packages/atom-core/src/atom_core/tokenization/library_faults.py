"""What the library of tokenizers does not take, as a `TokenizerError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atom_core.tokenization.tokenizer import TokenizerError


@contextmanager
def faults_told_as(problem: str) -> Iterator[None]:
    """Turn what the library raises inside into one line that begins with `problem`.

    Raises:
        TokenizerError: the library raised a bare Exception, or panicked, which is no Exception.
    """
    try:
        yield
    except (TokenizerError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"{problem}: {error}") from error
