"""Kinds of mistakes: functions of a file and one of its nodes that give edits."""

from tools.mutate.operators.aiter import ADAPTER_OPERATORS
from tools.mutate.operators.calls import CALL_OPERATORS
from tools.mutate.operators.expressions import EXPRESSION_OPERATORS
from tools.mutate.operators.statements import STATEMENT_OPERATORS

GENERAL_OPERATORS = (*CALL_OPERATORS, *EXPRESSION_OPERATORS, *STATEMENT_OPERATORS)

__all__ = ["ADAPTER_OPERATORS", "GENERAL_OPERATORS"]
