"""`TemplateParser`: follows generated text through the fields that a response template declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from atom_server.output.call_object import ListBody
from atom_server.output.parts import CallBody, Part
from atom_server.output.response_template.calls import reading_of
from atom_server.output.response_template.marks import Mark, Span
from atom_server.output.response_template.regions import Region, TextRegion, body_of, open_region
from atom_server.output.response_template.template import ANSWER, Field, ResponseTemplate
from atom_server.output.response_template.values import PATIENCE

# Text that was read is kept only for patterns that look behind themselves.
_LOOKS_BEHIND, _MOST_KEPT = 256, 8192
# No mark is longer: what white space before it could go on to is not held back for ever.
_LONGEST_MARK = 2048


class _Found(NamedTuple):
    span: Span
    field: Field
    is_begin: bool

    def rank(self) -> tuple[int, int, bool, str]:
        """The earliest counts; of those the longest."""
        return self.span.start, -self.span.end, not self.is_begin, self.field.name


class _Coming(NamedTuple):
    """Calls of which the first character has not come yet."""

    name: str
    body: CallBody


class TemplateParser:
    """Reads what transformers' ``parse_response`` reads, and tells it as it comes.

    Text of a field that may come once but comes again is told too, on a line of its own. Calls that are JSON end where
    their JSON ends, whatever marks their strings hold.

    Args:
        prompt: its last turn is what the model goes on with; one that shows no beginning of a turn says nothing.
        schemas: parameters of each function, which give values their types.
    """

    def __init__(self, template: ResponseTemplate, prompt: str, schemas: Mapping[str, Any] | None = None) -> None:
        self._template, self._schemas = template, schemas or {}
        self._text, self._place, self._prompt_end = "", 0, 0
        self._field: Field | None = None
        self._region: Region = Region()
        self._coming: _Coming | None = None
        self._body: CallBody | None = None
        self._told: set[str | None] = set()
        self._empty_match = (-1, "")
        self._has_begun = self._has_given_up = False
        self._return_to_leftover()
        self._begin_with(prompt)

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside the reasoning."""
        return self._field is not None and self._field.kind == "reasoning"

    def feed(self, text: str) -> list[Part]:
        """Take text; return the parts that are certain now."""
        self._text += text
        parts = self._read(at_end=False)
        if self._place > _MOST_KEPT:
            self._forget_text()
        return parts

    def finish(self) -> list[Part]:
        """What was held back; the end of the text ends every field."""
        parts = self._read(at_end=True) + self._close()
        self._text, self._place = "", 0
        return parts

    def _begin_with(self, prompt: str) -> None:
        """What the prompt says of this turn is known, but no news."""
        turn = ""
        try:
            for found in self._template.start.pattern.finditer(prompt, timeout=PATIENCE):
                turn = prompt[found.end() :]
        except TimeoutError:
            return
        self._text = turn
        self._read(at_end=False)
        # A mark that the prompt only began is held back; its text is the prompt's own all the same.
        self._prompt_end = len(self._text)
        self._told.clear()
        if isinstance(self._region, TextRegion):
            self._region.forget()
        elif self._field is not None and self._field.kind == "calls":
            self._region, self._coming, self._body = Region(), None, None

    def _read(self, *, at_end: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            if self._coming is not None:
                parts += self._begin_body(self._coming)
            if self._body is not None:
                parts += self._in_body(self._body)
            if (self._coming or self._body) and not at_end:
                return parts
            found, certain = self._next_match(at_end)
            certain = max(certain, len(self._text) - _LONGEST_MARK)
            parts += self._take(certain if found is None else found.span.start)
            if found is None:
                return parts
            self._place = found.span.end
            parts += self._close()
            if found.is_begin:
                self._open(found)

    def _take(self, end: int) -> list[Part]:
        """Text up to `end` belongs to what is open."""
        start, self._place = self._place, end
        news = max(start, min(self._prompt_end, end))
        if news > start:
            self._region.feed(self._text[start:news])
            if isinstance(self._region, TextRegion):
                self._region.forget()
        text = self._text[news:end]
        return self._tell(self._region.feed(text)) if text else []

    def _tell(self, parts: list[Part]) -> list[Part]:
        self._told |= {part.kind for part in parts}
        return parts

    def _forget_text(self) -> None:
        behind = self._place - _LOOKS_BEHIND
        self._text, self._place = self._text[behind:], _LOOKS_BEHIND
        self._prompt_end -= behind
        self._empty_match = (self._empty_match[0] - behind, self._empty_match[1])

    def _close(self) -> list[Part]:
        parts = self._tell(self._region.close())
        self._return_to_leftover()
        return parts

    def _return_to_leftover(self) -> None:
        self._field, self._coming, self._body = self._template.leftover, None, None
        # Text outside all fields is layout, but a reply that shows no field at all is an answer.
        outside = Region() if self._has_begun else TextRegion(ANSWER, "")
        self._region = outside if self._field is None else self._region_of(self._field, {})

    def _open(self, found: _Found) -> None:
        self._field, self._has_begun = found.field, True
        self._region = self._region_of(found.field, found.span.captures)
        reading = reading_of(found.field) if found.field.kind == "calls" else None
        body = None if reading is None else body_of(reading)
        if reading is None or body is None:
            return
        is_named = reading.style in ("json", "bare")
        name = found.span.captures.get(reading.name, "").strip() if is_named else ""
        if name or not is_named:
            self._coming = _Coming(name, body)

    def _region_of(self, field: Field, captures: Mapping[str, str]) -> Region:
        again = "\n" if field.join is None else field.join
        return open_region(field, again if field.kind in self._told else "", captures, self._schemas)

    def _begin_body(self, coming: _Coming) -> list[Part]:
        """Calls that do not begin like JSON are left to the region, which reads them whole."""
        text = self._text[self._place :].lstrip()
        if not text:
            return []
        self._coming = None
        if not text.startswith("[" if isinstance(coming.body, ListBody) else "{"):
            return []
        self._place = len(self._text) - len(text)
        self._region, self._body = Region(), coming.body
        return [Part("name", coming.name)] if coming.name else []

    def _in_body(self, body: CallBody) -> list[Part]:
        text, self._place = self._text[self._place :], len(self._text)
        parts = body.feed(text)
        if body.done:
            self._place, self._body = len(self._text) - len(body.rest), None
        return self._tell(parts)

    def _next_match(self, at_end: bool) -> tuple[_Found | None, int]:
        """The first mark that is certain, and up to where the text is certain not to be one."""
        certain = len(self._text)
        best: _Found | None = None
        if self._has_given_up:
            return None, certain
        try:
            for mark, field, is_begin in self._watched():
                span = mark.search(self._text, self._place, at_end=at_end)
                if span is None or self._is_again(span, field):
                    continue
                if not span.is_certain:
                    certain = min(certain, span.start)
                    continue
                found = _Found(span, field, is_begin)
                best = found if best is None else min(best, found, key=_Found.rank)
        except TimeoutError:
            self._has_given_up = True
            return None, len(self._text)
        if best is None or best.span.start >= certain:
            return None, certain
        if best.span.is_empty:
            self._empty_match = (best.span.start, best.field.name)
        return best, certain

    def _watched(self) -> Iterator[tuple[Mark, Field, bool]]:
        """The end of an open field; outside of those all beginnings, and what ends the text between them."""
        if self._field is not None and self._field.begin is not None:
            if self._field.end is not None:
                yield self._field.end, self._field, False
            return
        for field in self._template.fields:
            mark, is_begin = (field.end, False) if field.begin is None else (field.begin, True)
            if mark is not None:
                yield mark, field, is_begin

    def _is_again(self, found: Span, field: Field) -> bool:
        """A mark of no length is found only once at a place."""
        return found.is_empty and (found.start, field.name) == self._empty_match
