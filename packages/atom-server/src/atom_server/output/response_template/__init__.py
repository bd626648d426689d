"""Response templates: what a checkpoint itself declares of its way to write reasoning, content and calls."""

from atom_server.output.response_template.notation import answer_marks, notation_of, reasoning_marks
from atom_server.output.response_template.parser import TemplateParser
from atom_server.output.response_template.template import ResponseTemplate, ResponseTemplateError

__all__ = [
    "ResponseTemplate",
    "ResponseTemplateError",
    "TemplateParser",
    "answer_marks",
    "notation_of",
    "reasoning_marks",
]
