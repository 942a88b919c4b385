"""Operators that padding asks to be spelled otherwise: a mean is a sum by the true number.

A form takes the place of an operator where an operand is padded; None leaves the operator to its
padding rule (`tunefarm.compiler.operators.padding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.compiler.operators.use import Attributes

if TYPE_CHECKING:
    from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value

PaddedForm: TypeAlias = "Callable[[GraphBuilder, Sequence[Value | None], Attributes], Value | None]"

_FORMS: dict[str, PaddedForm] = {}


def padded_form(*operators: str) -> Callable[[PaddedForm], PaddedForm]:
    """Register a function as the form of these operators; `ValueError` if one has another."""

    def register(form: PaddedForm) -> PaddedForm:
        for name in operators:
            if name in _FORMS:
                raise ValueError(f"operator {name} has two forms for padded operands")
            _FORMS[name] = form
        return form

    return register


def form_of(operator: str) -> PaddedForm | None:
    """The form of an operator on padded operands, None where it stays as it is."""
    return _FORMS.get(operator)
