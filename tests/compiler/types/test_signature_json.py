"""Signatures as JSON: what is read is what was written, in canonical form."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import (
    AxisSource,
    Check,
    Equality,
    ResultSource,
    Signature,
    SizedPort,
    ValueSource,
)
from tunefarm.compiler.types.signature_json import signature_from_json, signature_to_json
from tunefarm.compiler.types.sizes import Symbol, divide, greater, remainder, smaller

BATCH, PAST, COUNT = Symbol("batch", 1, 4), Symbol("past", 0, 9), Symbol("count", 0, 5)
batch, past, count = (Symbol.of(s.name, s.low, s.high) for s in (BATCH, PAST, COUNT))


def signature() -> Signature:
    rows = SizedPort("rows", DType.F32, (batch * past, 3), (((batch, 4), (past, 16)), ((3, 3),)))
    mask = SizedPort("mask", DType.I64, (batch, past + 1), (((batch, 4),), ((past + 1, 16),)))
    found = SizedPort("found", DType.F16, (count,), (((count, 5),),))
    return Signature(
        inputs=(mask, rows),
        outputs=(found,),
        sources=(
            AxisSource(BATCH, "mask", 0),
            ValueSource(PAST, "mask", 2),
            ResultSource(COUNT, "%count", 0),
        ),
        sizes=(1, batch, divide(past + 1, 2) * 3 - batch, remainder(past, 4)),
        equalities=(Equality(smaller(past, batch), greater(past - 3, 1), "they are added"),),
        checks=(Check("%check:0", "axes", "the list of axes must be [1]"),),
    )


def test_signature_survives_the_round_trip() -> None:
    data = json.loads(json.dumps(signature_to_json(signature())))
    assert signature_from_json(data) == signature()


def changed(path: tuple[Any, ...], value: object) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(("symbols", "batch"), [4, 1]),
        changed(("symbols", "batch"), [1, 4.0]),
        changed(("symbols", "batch"), [True, 4]),
        changed(("symbols",), {}),
        changed(("sizes", 1), [[1, "nobody"]]),
        changed(("sizes", 1), [[1, ["/", 4, 2]]]),
        changed(("sizes", 1), [[1, ["//", 4, [[1, "past"]]]]]),
        changed(("sizes", 1), "batch"),
        changed(("sources", 0, 0), "axes"),
        changed(("sources", 0, 3), "0"),
        changed(("inputs", 0, 1), "f31"),
        changed(("inputs", 0, 3, 0, 0), [4]),
        changed(("equalities", 0), [1, 2]),
        changed(("outputs",), None),
    ],
)
def test_other_json_is_refused(change: Callable[[Any], None]) -> None:
    data = signature_to_json(signature())
    change(data)
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError, ShapeError)):
        signature_from_json(data)
