"""`PastOutputs`: what requests have generated, kept apart by their salts and within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from atom_core.speculation.suffix.index import END, SuffixIndex

# Tokens of all salts together, at 28 bytes each, and those of one.
MOST_TOKENS, MOST_OF_ONE = 1 << 20, 1 << 17
# Tokens that become places whenever a request asks: each step asks for each token that it adds.
_INDEXED_AT_ONCE = 64


class PastOutputs:
    """An index for each salt. What requests of one salt have generated is never seen by those of another.

    It follows the rule of cached prefixes: whoever may find out from times that a prefix is cached may find out that a
    text was generated, and nobody else.

    Args:
        most_outputs: outputs that are kept, of all salts together. With too many outputs or tokens the salt that was
            unused for longest is forgotten; of the only one, the earlier half.

    Attributes:
        num_tokens, num_outputs: what is kept of all salts, ends of outputs counted as tokens.
    """

    def __init__(self, most_outputs: int) -> None:
        self._most_outputs = most_outputs
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.num_tokens = self.num_outputs = 0

    def of(self, salt: str) -> SuffixIndex | None:
        """The outputs of `salt`; None where there are none."""
        kept = self._kept.get(salt)
        if kept is None:
            return None
        self._kept.move_to_end(salt)
        kept.index.catch_up(_INDEXED_AT_ONCE)
        return kept.index

    def add(self, salt: str, token_ids: Sequence[int]) -> None:
        """A request of `salt` ended with this output."""
        if not token_ids or not self._most_outputs:
            return
        kept = self._kept.setdefault(salt, _Kept())
        self._kept.move_to_end(salt)
        self._count(kept, -1)
        kept.add(token_ids)
        self._count(kept, 1)
        while len(self._kept) > 1 and (self.num_outputs > self._most_outputs or self.num_tokens > MOST_TOKENS):
            self._count(self._kept.popitem(last=False)[1], -1)
        while self.num_outputs > self._most_outputs:
            self._count(kept, -1)
            kept.forget_half()
            self._count(kept, 1)

    def forget(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.num_tokens = self.num_outputs = 0

    def _count(self, kept: _Kept, sign: int) -> None:
        self.num_tokens += sign * len(kept.index.tokens)
        self.num_outputs += sign * kept.num_outputs


class _Kept:
    """The outputs of one salt, each with `END` behind it; `num_outputs` counts those whose end is kept."""

    def __init__(self) -> None:
        self.index, self.num_outputs = SuffixIndex(MOST_OF_ONE), 0

    def add(self, token_ids: Sequence[int]) -> None:
        num_tokens = len(self.index.tokens) + len(token_ids) + 1
        self.index.extend((*token_ids, END))
        self.num_outputs += 1
        if len(self.index.tokens) < num_tokens:
            # The earlier half was forgotten.
            self.num_outputs = self.index.tokens.count(END)

    def forget_half(self) -> None:
        self.index.forget(max(len(self.index.tokens) // 2, 1))
        self.num_outputs = self.index.tokens.count(END)
