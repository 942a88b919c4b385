"""Inputs that a kernel's result may be written over: caches that a step extends.

    present[i] = select(i < past length, past[i], new[i - past length])

Each element of such an input is read where it is written, and stays what it is or becomes what
does not depend on it. So both may be one memory: an element that is computed twice, by overlapping
tiles or by two threads, is the same both times.
"""

from __future__ import annotations

from tunefarm.compiler.expr.affine import Affine, affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    binary,
    index,
    integer,
    select,
    stored_as,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import DensePitch, FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen


def inputs_kept(kernel: FusedKernel) -> tuple[int, ...]:
    """The inputs, by number, that the result may be written over.

    They have its type, and each of their loads is an outcome of the selection that the result is,
    at the element that is written.
    """
    output = kernel.output
    if output.combiner:
        return ()
    kept, others = set[str](), [stage.body for stage in kernel.stages[:-1]]
    rest = [stored_body(kernel)]
    while rest:
        node = rest.pop()
        if isinstance(node, Select):
            rest += node.then, node.otherwise
            others.append(node.condition)
        elif isinstance(node, Load) and _is_own(node, output):
            kept.add(node.buffer)
        else:
            others.append(node)
    kept -= {load.buffer for expr in others for load in loads(expr)}
    return tuple(
        number
        for number, buffer in enumerate(kernel.inputs)
        if buffer.name in kept
        and (buffer.dtype, buffer.shape) == (output.dtype, output.shape)
        and not isinstance(buffer.pitch, DensePitch)
    )


def stored_body(kernel: FusedKernel) -> Expr:
    """What is stored of each element: a conversion of a selection is one of its outcomes.

    So the elements of a cache in f16 stay what they are. Kernels of fixed sizes are as they were.
    """
    body = kernel.output.body
    if not kernel.limits or not isinstance(body, Cast):
        return body
    return _converted(body.dtype, body.operand)


def _converted(dtype: DType, expr: Expr) -> Expr:
    if not isinstance(expr, Select):
        return stored_as(dtype, expr)
    then, otherwise = (_converted(dtype, item) for item in (expr.then, expr.otherwise))
    return select(expr.condition, then, otherwise)


def _is_own(load: Load, output: Stage) -> bool:
    """Whether a load is of the element that is written."""
    return len(load.indices) == len(output.axes) and all(
        given == index(axis.name) or (axis.extent == 1 and given == integer(0))
        for given, axis in zip(load.indices, output.axes, strict=True)
    )


@frozen
class WrittenRows:
    """The rows that a result has not from the input `kept`: `count` of them along an axis, from
    `first` on, which axes outside of it decide."""

    kept: str
    axis: int
    first: Expr
    count: Expr
    value: Expr


def written_rows(kernel: FusedKernel) -> WrittenRows | None:
    """The rows, if the result is `select(0 <= i - start < count, new, kept[…, i, …])`.

    A kernel that leaves the rest may have `select(i - start < 0, kept[…, i, …], 0)` there, and all
    of that may be filled behind the end of an axis.
    """
    output, body = kernel.output, stored_body(kernel)
    kept = [kernel.inputs[number].name for number in inputs_kept(kernel)]
    if len(kernel.stages) != 1 or not isinstance(body, Select):
        return None
    fills = list[Select]()
    while kernel.leaves_rest and _fills_end(body) and isinstance(body.then, Select):
        fills.append(body)
        body = body.then
    own, parts = body.otherwise, conjuncts(body.condition)
    if len(parts) != 2:
        return None
    if kernel.leaves_rest and isinstance(own, Select):
        before = binary("lt", parts[0].left, integer(0)) if isinstance(parts[0], Binary) else None
        own = own.then if own.condition == before else own
    if not isinstance(own, Load) or own.buffer not in kept:
        return None
    match parts:
        case (
            Binary(op="ge", left=place, right=Const(value=0)),
            Binary(op="lt", left=same, right=count),
        ) if place == same and place.dtype is DType.I64 and not axes_of(count):
            value = body.then
            for fill in reversed(fills):
                value = select(fill.condition, value, fill.otherwise)
            return _written(output, own.buffer, affine(place, {}), count, value)
    return None


def _fills_end(body: Select) -> bool:
    """Whether a select puts a number behind the size of an axis."""
    match body.condition:
        case Binary(op="lt", left=Index(), right=Load(indices=(Const(),))):
            return isinstance(body.otherwise, Const)
    return False


def _written(
    output: Stage, kept: str, place: Affine, count: Expr, value: Expr
) -> WrittenRows | None:
    for number, axis in enumerate(output.axes):
        first = Affine(0, ()).plus(place, -1).plus(Affine(0, ((axis.name, 1),)))
        outside = {other.name for other in output.axes[:number]}
        if place.coefficient(axis.name) == 1 and axes_of(first.to_expr()) <= outside:
            return WrittenRows(kept, number, first.to_expr(), count, value)
    return None
