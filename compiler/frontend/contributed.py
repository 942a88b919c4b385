"""Signatures of operators that ONNX does not have: what onnxruntime documents of its own ones."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from onnx import AttributeProto

from tunefarm.compiler.frontend.contributed_table import (
    MICROSOFT,
    ONNX,
    REFUSED,
    REFUSED_DOMAINS,
    TYPES,
)
from tunefarm.compiler.frontend.signature import Formal, Signature

_ANY = 2**31 - 1  # inputs
_KINDS = {
    "int": AttributeProto.INT,
    "ints": AttributeProto.INTS,
    "float": AttributeProto.FLOAT,
    "floats": AttributeProto.FLOATS,
    "string": AttributeProto.STRING,
    "strings": AttributeProto.STRINGS,
}


@cache
def contributed_signature(domain: str, operator: str) -> Signature | None:
    """The signature of an operator of another's domain, None for those that are not known."""
    form = {"com.microsoft": MICROSOFT, "": ONNX}.get(domain, {}).get(operator)
    return None if form is None else _signature(*form)


def refusal(domain: str, operator: str) -> str:
    """Why an operator that other software writes cannot be imported; "" where nothing is known."""
    if domain == "com.microsoft" and operator in REFUSED:
        return REFUSED[operator]
    return REFUSED_DOMAINS.get(domain, "")


def _signature(inputs: str, attributes: str, outputs: tuple[int, int]) -> Signature:
    """The signature that a line of the table says."""
    formals = []
    for item in inputs.split():
        name, _, type = item.rstrip("?*").partition(":")
        allowed = frozenset(f"tensor({element})" for element in TYPES[type[0]])
        formals.append(Formal(name, type, allowed, item[-1] != "?", item[-1] != "*"))
    needed = max(at for at, formal in enumerate(formals, 1) if formal.required)
    is_variadic = not formals[-1].homogeneous
    kinds = dict(item.rstrip("!").split(":") for item in attributes.split())
    return Signature(
        since_version=1,
        deterministic=True,
        has_body=False,
        min_inputs=needed,
        max_inputs=_ANY if is_variadic else len(formals),
        min_outputs=outputs[0],
        max_outputs=outputs[1],
        inputs=tuple(formals),
        variadic=is_variadic,
        attributes=MappingProxyType({name: _KINDS[kind] for name, kind in kinds.items()}),
        required=tuple(i.split(":")[0] for i in attributes.split() if i.endswith("!")),
    )
