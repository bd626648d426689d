"""A grammar is tried over a vocabulary of bytes: it has a beginning, and following it takes bearable work.

Much of a grammar is only built when a text comes to it, and what goes wrong there would end a request in the middle of
its text. So a text is followed for a while before the request is taken.
"""

from __future__ import annotations

import random
import time
from functools import cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from atom_core.structured_output.llguidance.library_tokenizer import NUM_BYTES, tokenizer_of_bytes

_bytes = cache(tokenizer_of_bytes)

# A text that takes any way on, always the same.
NUM_STEPS = 48
# Processor time of all steps; a schema of 60 kB takes 10 ms.
MAX_SECONDS = 0.2


def why_it_cannot_be_followed(grammar: str, limits: LLParserLimits) -> str | None:
    """What goes wrong when a text follows a sound grammar, in words; None where nothing does."""
    matcher = LLMatcher(_bytes(), grammar, log_level=0, limits=limits)
    words = np.zeros(NUM_BYTES // 32 + 1, dtype=np.int32)
    choose = random.Random(0).choice
    begun = time.thread_time()
    for step in range(NUM_STEPS):
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            error = matcher.get_error().splitlines()[0]
            if not error.startswith("NoExtensionBias"):
                return f"takes too much work to follow: {error}"
            return "no text follows it" if step == 0 else None
        if time.thread_time() - begun > MAX_SECONDS:
            return "takes too much work to follow: make it simpler"
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), count=NUM_BYTES, bitorder="little"))
        if not len(allowed) or matcher.is_stopped():
            return None
        matcher.consume_token(int(choose(allowed)))
    return None
