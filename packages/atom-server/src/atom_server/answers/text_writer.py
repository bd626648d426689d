"""`TextWriter`: the choices of a text completion, whole or as news, with echo, logprobs and token ids as asked for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from atom_core import CompletionLogprobs, RequestOutput, SamplingParams, Tokenizer
from atom_server.answers.logprobs import by_id, by_text, prompt_logprobs, text_logprobs
from atom_server.generation.collect import Collected
from atom_server.prompts.texts import PromptTokens
from atom_server.schemas.answers import TextChoice, TextLogprobs
from atom_server.schemas.completions import CompletionRequest


class TextWriter:
    """Writes choices: the prompt first where `echo` asks for it, with logprobs to match."""

    def __init__(self, body: CompletionRequest, prompts: list[PromptTokens], tokenizer: Tokenizer | None) -> None:
        self._body = body
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._wants_logprobs = body.logprobs is not None
        self._spelling = by_id if body.return_tokens_as_token_ids else by_text
        # For each choice, the characters of the tokens whose logprobs were sent.
        self._offsets: dict[int, int] = {}
        self._started: set[int] = set()

    def sampling_params(self) -> SamplingParams:
        """The engine's parameters."""
        body = self._body
        overrides = {"logprobs": body.logprobs}
        if body.echo and body.logprobs is not None:
            overrides["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        return body.sampling_params(**overrides)

    def choice(self, choice: Collected) -> TextChoice:
        """A whole choice."""
        body = self._body
        written = TextChoice(
            index=choice.index,
            text=self._echoed(choice.index) + choice.text,
            logprobs=self._logprobs(choice.index, choice.prompt_logprobs, choice.logprobs, is_first=True),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=UNSET if body.prompt_logprobs is None else prompt_logprobs(choice.prompt_logprobs),
        )
        if body.return_token_ids:
            written.prompt_token_ids = self._prompt(choice.index).token_ids
            written.token_ids = choice.token_ids
        return written

    def news(self, index: int, output: RequestOutput) -> TextChoice | None:
        """One sample's news; None where there is nothing to send."""
        body = self._body
        choice = TextChoice(index, output.text_delta)
        is_first = index not in self._started
        if is_first:
            self._started.add(index)
            choice.text = self._echoed(index) + output.text_delta
        if self._wants_logprobs:
            of_prompt = output.prompt_logprobs or []
            choice.logprobs = self._logprobs(index, of_prompt, output.logprobs or [], is_first=is_first)
        if output.finished:
            choice.finish_reason = "length" if output.finish_reason == "length" else "stop"
            choice.stop_reason = output.stop_reason
        if body.return_token_ids:
            choice.token_ids = output.output_tokens
            if is_first:
                choice.prompt_token_ids = self._prompt(index).token_ids
        has_logprobs = choice.logprobs is not None and choice.logprobs.tokens
        return choice if choice.text or output.finished or has_logprobs or body.return_token_ids else None

    def _prompt(self, index: int) -> PromptTokens:
        return self._prompts[index // self._body.n]

    def _echoed(self, index: int) -> str:
        """What a choice begins with."""
        return self._prompt(index).text or "" if self._body.echo else ""

    def _logprobs(
        self,
        index: int,
        of_prompt: Sequence[CompletionLogprobs],
        of_output: Sequence[CompletionLogprobs],
        *,
        is_first: bool,
    ) -> TextLogprobs | None:
        """Logprobs of the prompt's tokens if it is echoed, then of new ones; a long prompt's come in parts."""
        if not self._wants_logprobs:
            return None
        entries: list[CompletionLogprobs | None] = [*(of_prompt if self._body.echo else ()), *of_output]
        first = (0, "")
        if self._body.echo and is_first:
            first_id = self._prompt(index).token_ids[0]
            first = (first_id, self._tokenizer.id_to_text(first_id) if self._tokenizer else "")
            entries = [None, *entries]
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(len(first[1] if entry is None else entry.token) for entry in entries)
        return text_logprobs(entries, first_token=first, offset=offset, spelling=self._spelling)
