"""`SuffixDrafters`: gives each request a drafter that looks into itself and into outputs of the same salt."""

from __future__ import annotations

from collections.abc import Sequence

from atom_core.speculation.config import SuffixConfig
from atom_core.speculation.suffix.drafter import SuffixDrafter
from atom_core.speculation.suffix.past_outputs import PastOutputs


class SuffixDrafters:
    """See `Drafters`."""

    def __init__(self, config: SuffixConfig) -> None:
        self._config, self._past = config, PastOutputs(config.max_cached_requests)

    @property
    def num_kept_tokens(self) -> int:
        """See `Drafters`."""
        return self._past.num_tokens

    def start(self, salt: str) -> SuffixDrafter:
        """See `Drafters`."""
        return SuffixDrafter(self._config, self._past, salt)

    def take_output(self, salt: str, token_ids: Sequence[int]) -> None:
        """See `Drafters`."""
        self._past.add(salt, token_ids)

    def forget(self) -> None:
        """See `Drafters`."""
        self._past.forget()
