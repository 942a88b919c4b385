"""Canonical JSON of kernels: expressions become one table of distinct nodes.

Equal kernels give equal JSON whatever objects their expressions share, and shared nodes are
written once. Rows of the table, operands as row numbers:

    ["const", dtype, value]            floats that JSON lacks are "inf", "-inf", "nan"
    ["index", name]
    ["load", dtype, buffer, indices]
    ["unary", dtype, op, operand]
    ["binary", dtype, op, left, right]
    ["select", condition, then, otherwise]
    ["cast", dtype, operand]

A stage is [name, axes, reduce axes, combiner, body], and its accumulator where it has one. A limit
is [stride, extent, sizes, number]; they are there where the kernel has any. A pitch is
[column, extent, rows, sizes, number, margin], and its multiple where that is not 1: the last of an
input, or the kernel's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Index, Load, Select, Unary
from tunefarm.compiler.expr.walk import children, postorder
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    DensePitch,
    FusedKernel,
    Pitch,
    RowPitch,
    ValidExtent,
)
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType

FORMAT = 1


class ExpressionTable:
    """Distinct expressions as JSON rows, operands before their users."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.operands: list[list[int]] = []  # row numbers, by row
        self._numbers: dict[str, int] = {}
        self._objects: dict[int, int] = {}
        self._keep: list[Expr] = []  # keeps the ids in `_objects` valid

    def add(self, expr: Expr) -> int:
        """The row number of `expr`, after adding what is missing."""
        for node in postorder(expr):
            if id(node) in self._objects:
                continue
            operands = [self._objects[id(operand)] for operand in children(node)]
            row = self._row(node, operands)
            key = repr(row)
            number = self._numbers.setdefault(key, len(self.rows))
            if number == len(self.rows):
                self.rows.append(row)
                self.operands.append(operands)
            self._objects[id(node)] = number
            self._keep.append(node)
        return self._objects[id(expr)]

    def _row(self, node: Expr, operands: list[int]) -> list[Any]:
        match node:
            case Const():
                return ["const", str(node.dtype), number_to_json(node.value)]
            case Index():
                return ["index", node.name]
            case Load():
                return ["load", str(node.dtype), node.buffer, operands]
            case Unary() | Binary():
                kind = "unary" if isinstance(node, Unary) else "binary"
                return [kind, str(node.dtype), node.op, *operands]
            case Select():
                return ["select", *operands]
            case Cast():
                return ["cast", str(node.dtype), *operands]
            case _:
                raise TypeError(f"no such expression: {type(node).__name__}")


def number_to_json(value: int | float | bool) -> int | float | bool | str:
    """A number as strict JSON can hold it, exactly."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def number_from_json(value: int | float | bool | str) -> int | float | bool:
    """The inverse of `number_to_json`."""
    return float(value) if isinstance(value, str) else value


def kernel_to_json(kernel: FusedKernel) -> dict[str, Any]:
    """The kernel as canonical JSON values; `kernel_from_json` rebuilds it without the model."""
    table = ExpressionTable()
    stages = [
        [
            stage.name,
            _axes_to_json(stage.axes),
            _axes_to_json(stage.reduce_axes),
            stage.combiner,
            table.add(stage.body),
            *([] if stage.accumulator is None else [str(stage.accumulator)]),
        ]
        for stage in kernel.stages
    ]
    return {
        "format": FORMAT,
        "name": kernel.name,
        "inputs": [
            [
                buffer.name,
                str(buffer.dtype),
                list(buffer.shape),
                buffer.constant,
                *([] if buffer.pitch is None else [_pitch_to_json(buffer.pitch)]),
            ]
            for buffer in kernel.inputs
        ],
        "expressions": table.rows,
        "stages": stages,
        "anchor": kernel.anchor,
        **({"limits": [_limit_to_json(limit) for limit in kernel.limits]} if kernel.limits else {}),
        **({"sizes": list(kernel.sizes)} if kernel.sizes else {}),
        **({"leaves_rest": True} if kernel.leaves_rest else {}),
        **({} if kernel.pitch is None else {"pitch": _pitch_to_json(kernel.pitch)}),
    }


def _pitch_to_json(pitch: Pitch) -> list[Any]:
    if isinstance(pitch, DensePitch):
        return [list(pitch.extents), pitch.sizes, list(pitch.numbers)]
    *plain, multiple = astuple(pitch)
    return [*plain, multiple] if multiple > 1 else plain


def _limit_to_json(limit: ValidExtent) -> list[str | int]:
    offset = [limit.offset] if limit.offset else []
    return [limit.stride, limit.extent, limit.sizes, limit.number, *offset]


def kernel_from_json(value: Any) -> FusedKernel:
    """The kernel that `kernel_to_json` wrote; `TunefarmError` when the value is no such JSON."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, Mapping) else type(value).__name__
        raise TunefarmError(
            f"kernel JSON of format {FORMAT} expected, found {found}",
            hint="the record was written by another version",
        )
    try:
        return _kernel_from_json(value)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise TunefarmError(f"damaged kernel JSON: {type(error).__name__}: {error}") from error


def _kernel_from_json(value: Mapping[str, Any]) -> FusedKernel:
    nodes: list[Expr] = []
    for row in value["expressions"]:
        nodes.append(_expression_from_row(row, nodes))
    inputs = tuple(
        Buffer(str(name), DType(dtype), _extents(shape), bool(constant), *map(_pitch, pitch))
        for name, dtype, shape, constant, *pitch in value["inputs"]
    )
    stages = tuple(
        Stage(
            str(name),
            _axes_from_json(axes),
            _axes_from_json(reduce),
            str(combiner),
            nodes[body],
            *map(DType, accumulator),
        )
        for name, axes, reduce, combiner, body, *accumulator in value["stages"]
    )
    limits = tuple(
        ValidExtent(int(stride), int(extent), str(sizes), int(number), *map(int, offset))
        for stride, extent, sizes, number, *offset in value.get("limits", ())
    )
    sizes = tuple(int(size) for size in value.get("sizes", ()))
    name, anchor, leaves = str(value["name"]), str(value["anchor"]), "leaves_rest" in value
    pitch = _row_pitch(value["pitch"]) if "pitch" in value else None
    return FusedKernel(name, inputs, stages, anchor, limits, sizes, leaves, pitch)


def _pitch(value: Sequence[Any]) -> Pitch:
    if not isinstance(value[0], Sequence):
        return _row_pitch(value)
    extents, sizes, numbers = value
    there = (None if number is None else int(number) for number in numbers)
    return DensePitch(_extents(extents), str(sizes), tuple(there))


def _row_pitch(value: Sequence[Any]) -> RowPitch:
    column, extent, rows, sizes, *numbers = value
    return RowPitch(int(column), int(extent), int(rows), str(sizes), *map(int, numbers))


def _expression_from_row(row: Sequence[Any], nodes: Sequence[Expr]) -> Expr:
    kind, *rest = row
    match kind:
        case "const":
            return Const(DType(rest[0]), number_from_json(rest[1]))
        case "index":
            return Index(DType.I64, str(rest[0]))
        case "load":
            return Load(DType(rest[0]), str(rest[1]), tuple(nodes[number] for number in rest[2]))
        case "unary":
            return Unary(DType(rest[0]), str(rest[1]), nodes[rest[2]])
        case "binary":
            return Binary(DType(rest[0]), str(rest[1]), nodes[rest[2]], nodes[rest[3]])
        case "select":
            condition, then, otherwise = (nodes[number] for number in rest)
            return Select(then.dtype, condition, then, otherwise)
        case "cast":
            return Cast(DType(rest[0]), nodes[rest[1]])
        case _:
            raise ValueError(f"no expression of kind {kind!r}")


def _axes_to_json(axes: Sequence[Axis]) -> list[list[str | int]]:
    return [[axis.name, axis.extent] for axis in axes]


def _axes_from_json(axes: Sequence[Sequence[Any]]) -> tuple[Axis, ...]:
    return tuple(Axis(str(name), int(extent)) for name, extent in axes)


def _extents(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape)
