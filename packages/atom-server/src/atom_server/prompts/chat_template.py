"""Renders a model's chat template, as Hugging Face templates expect it, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from atom_server.errors import CLIENT_CLOSED_REQUEST, APIError
from atom_server.prompts.template_sandbox import BUDGET, BudgetError, RenderBudget, TemplateSandbox, UnwantedError


class ChatTemplateError(ValueError):
    """A chat template that is not Jinja; the message says where."""


class TemplateRefusal(jinja2.TemplateError):
    """The template itself says that it cannot render these messages."""


class ChatTemplate:
    """A compiled chat template.

    Raises:
        ChatTemplateError: `source` is not a Jinja template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template does not parse: {error.message} (line {error.lineno})"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        most_characters: int | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> str:
        """The prompt for `messages`, which ends inside the last one where that is to be continued.

        Args:
            variables: what the template reads, by the names that it has for them.
            most_characters: longer prompts are refused, and not even written to their end.
            is_wanted: asked again and again; the work ends where it says no.

        Raises:
            APIError: 400; the template refused these messages, or failed on them, took too long, or the prompt is too
                long. 499 where nobody wants it any more.
        """
        variables = variables or {}
        self._check_names(variables)
        budget = RenderBudget(is_wanted)
        pieces = self._pieces(messages, add_generation_prompt and not continue_final_message, variables, budget)
        written, size = [], 0
        for piece in pieces:
            size += len(piece)
            if most_characters is not None and size > most_characters:
                message = f"the messages make a prompt of more than {most_characters} characters; send less"
                raise APIError(400, message, param="messages", code="context_length_exceeded")
            if not is_wanted():
                raise _left()
            written.append(piece)
        text = "".join(written)
        return _cut_after(text, messages[-1].get("content")) if continue_final_message else text

    def _check_names(self, variables: Mapping[str, Any]) -> None:
        """Refuse variables that would take the place of functions that the template calls."""
        taken = sorted(self._template.globals.keys() & variables.keys())
        if taken:
            message = f"{', '.join(taken)} cannot be set here: templates call functions of these names"
            raise APIError(400, message, param="chat_template_kwargs")

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        budget: RenderBudget,
    ) -> Iterator[str]:
        context = {**variables, **self._special_tokens}
        context |= {"messages": self._known_roles(messages), "add_generation_prompt": add_generation_prompt}
        context[BUDGET] = budget
        try:
            yield from self._template.generate(context)
        except BudgetError as error:
            raise _unrenderable(f"the chat template cannot render these messages: {error}") from None
        except UnwantedError:
            raise _left() from None
        except TemplateRefusal as error:
            raise _unrenderable(f"the chat template refuses these messages: {error}") from None
        except jinja2.TemplateError as error:
            raise _unrenderable(f"the chat template cannot render these messages: {error}") from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise _unrenderable(f"the chat template failed on these messages: {reason}") from None

    def _known_roles(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """`developer` is the newer name of `system`; most templates know only the older one."""
        knows_developer = "developer" in self.source
        return [
            dict(message) | ({"role": "system"} if message.get("role") == "developer" and not knows_developer else {})
            for message in messages
        ]


def _cut_after(text: str, final: Any) -> str:
    """`text` up to the end of its last message; templates may have stripped that message."""
    if not isinstance(final, str) or not final.strip():
        raise APIError(400, "the last message has no text to be continued", param="messages")
    start = text.rfind(final.strip())
    if start < 0:
        raise _unrenderable("the chat template changes the last message, so it cannot be continued")
    for kept in (final.lstrip(), final.strip()):
        if text.startswith(kept, start):
            return text[: start + len(kept)]
    raise _unrenderable("the chat template changes the last message, so it cannot be continued")


def _environment() -> TemplateSandbox:
    environment = TemplateSandbox()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter: a prompt is not a page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _left() -> APIError:
    return APIError(CLIENT_CLOSED_REQUEST, "the client went away", code="client_closed_request")


def _unrenderable(message: str) -> APIError:
    return APIError(400, message[:500], param="messages", code="chat_template_error")
