"""Text to token ids and back: tokenizers of folders and GGUF files, incremental detokenizing, stop strings."""

from atom_core.tokenization.bad_words import bad_words_token_ids
from atom_core.tokenization.detokenizer import IncrementalDetokenizer
from atom_core.tokenization.stop_strings import StopStringMatcher
from atom_core.tokenization.text_threads import TextThreads, TooManyTokensError
from atom_core.tokenization.tokenizer import Tokenizer, TokenizerError

__all__ = [
    "IncrementalDetokenizer",
    "StopStringMatcher",
    "TextThreads",
    "Tokenizer",
    "TokenizerError",
    "TooManyTokensError",
    "bad_words_token_ids",
]
