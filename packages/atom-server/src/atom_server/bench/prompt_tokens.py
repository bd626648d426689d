"""How the client counts and makes prompts of tokens: by the server's own tokenizer, by one given, or by words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atom_server.bench.client import Client
from atom_server.bench.outcome import BenchError

if TYPE_CHECKING:
    from atom_core import Tokenizer

_WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "as", "with", "his", "they", "at")
_MOST_TRIES = 8


class PromptTokens(Protocol):
    """Makes prompts of so many tokens.

    Attributes:
        name: shown in results.
    """

    name: str

    async def count(self, text: str) -> int:
        """Tokens of a text.

        Raises:
            BenchError: nothing here knows.
        """
        ...

    def draw(self, source: random.Random, count: int) -> list[Any]:
        """So many tokens at random, which `prompt` takes."""
        ...

    def prompt(self, tokens: Sequence[Any]) -> str | list[int]:
        """What is sent for these tokens."""
        ...

    async def templated(self, text: str | list[int]) -> str | list[int]:
        """The text as a user's message, rendered by the chat template.

        Raises:
            BenchError: there is none.
        """
        ...


class ServerTokens:
    """Token ids, counted by the server's ``/tokenize``.

    Args:
        vocab_size: ids are below it.
    """

    def __init__(self, client: Client, vocab_size: int) -> None:
        self._client, self._vocab_size, self.name = client, vocab_size, "the server's"

    async def count(self, text: str) -> int:
        """See `PromptTokens`."""
        return int((await self._client.ask("POST", "/tokenize", {"prompt": text}))["count"])

    def draw(self, source: random.Random, count: int) -> list[Any]:
        """See `PromptTokens`."""
        return [source.randrange(self._vocab_size) for _ in range(count)]

    def prompt(self, tokens: Sequence[Any]) -> str | list[int]:
        """See `PromptTokens`."""
        return list(tokens)

    async def templated(self, text: str | list[int]) -> str | list[int]:
        """See `PromptTokens`."""
        if not isinstance(text, str):
            text = (await self._client.ask("POST", "/detokenize", {"tokens": text}))["prompt"]
        message = {"role": "user", "content": text}
        return (await self._client.ask("POST", "/tokenize", {"messages": [message]}))["tokens"]


class Words:
    """Words of about one token each, for servers that do not tell of their tokenizer."""

    name = "words"

    async def count(self, text: str) -> int:
        """See `PromptTokens`."""
        raise BenchError(
            "this dataset needs prompts counted, and the server has no /tokenize: name a folder with --tokenizer"
        )

    def draw(self, source: random.Random, count: int) -> list[Any]:
        """See `PromptTokens`."""
        return [source.choice(_WORDS) for _ in range(count)]

    def prompt(self, tokens: Sequence[Any]) -> str | list[int]:
        """See `PromptTokens`."""
        return " ".join(tokens)

    async def templated(self, text: str | list[int]) -> str | list[int]:
        """See `PromptTokens`."""
        raise BenchError("--use-chat-template needs a tokenizer: name a folder with --tokenizer")


class FolderTokens:
    """Texts of a tokenizer that the client has itself.

    Args:
        path: folder with tokenizer.json, or a .gguf file.

    Raises:
        BenchError: there is no tokenizer.
    """

    def __init__(self, path: str) -> None:
        # Imported here: most runs load no tokenizer.
        from atom_core.tokenization import Tokenizer, TokenizerError

        if not Path(path).is_dir():
            raise BenchError(f"--tokenizer {path}: name a folder with tokenizer.json")
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_folder(path)
        except (TokenizerError, OSError) as error:
            raise BenchError(f"--tokenizer {path}: {error}") from None
        special = self.tokenizer.special_token_ids
        self._ids = [token_id for token_id in range(self.tokenizer.vocab_size) if token_id not in special]
        self.name = path

    async def count(self, text: str) -> int:
        """See `PromptTokens`."""
        return self.length(text)

    def length(self, text: str) -> int:
        """The same, at once."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def draw(self, source: random.Random, count: int) -> list[Any]:
        """See `PromptTokens`."""
        return [source.choice(self._ids) for _ in range(count)]

    def prompt(self, tokens: Sequence[Any]) -> str | list[int]:
        """A text of as many tokens: what random ids spell may be read as others, so it is made fit a few times."""
        wanted, ids = len(tokens), list(tokens)
        filler = self.tokenizer.encode(" the", add_special_tokens=False)[:1]
        text = self.tokenizer.decode(ids)
        for _ in range(_MOST_TRIES):
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == wanted:
                break
            text = self.tokenizer.decode((ids + filler * (wanted - len(ids)))[:wanted])
        return text

    async def templated(self, text: str | list[int]) -> str | list[int]:
        """See `PromptTokens`."""
        from atom_server.startup import load_template

        template = load_template(self.tokenizer, None)
        if template is None or not isinstance(text, str):
            raise BenchError(f"--use-chat-template: the tokenizer of {self.name} has no chat template")
        return template.render([{"role": "user", "content": text}])


async def prompt_tokens(client: Client, tokenizer: str | None, *, takes_ids: bool) -> PromptTokens:
    """By the tokenizer that is named, else by the server's own, else by words.

    Args:
        takes_ids: whether requests may carry token ids in place of a text.
    """
    if tokenizer is not None:
        return FolderTokens(tokenizer)
    try:
        vocab_size = int((await client.ask("GET", "/tokenizer_info"))["vocab_size"])
    except (BenchError, KeyError, TypeError, ValueError):
        return Words()
    return ServerTokens(client, vocab_size) if takes_ids else ServerWords(client, vocab_size)


class ServerWords(ServerTokens):
    """Words, for requests that carry texts alone, and the server's counts."""

    def draw(self, source: random.Random, count: int) -> list[Any]:
        """See `PromptTokens`."""
        return Words().draw(source, count)

    def prompt(self, tokens: Sequence[Any]) -> str | list[int]:
        """See `PromptTokens`."""
        return Words().prompt(tokens)
