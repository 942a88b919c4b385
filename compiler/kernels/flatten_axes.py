"""Walk two axes of a kernel's result as one, whatever is read along them: [w, 3] -> [w*3]."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, Ranges, affine, rejoined
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index, Load, binary, index, integer
from tunefarm.compiler.expr.walk import loads, postorder, transform
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType

_BOUNDS = {"lt": ("lt", 0), "ge": ("ge", 0), "le": ("lt", 1), "gt": ("ge", 1)}


def flatten_axes(kernel: FusedKernel, first: str, second: str) -> FusedKernel:
    """The kernel with the result's adjacent axes `first` and `second` as one, named after both.

    Their values are its quotient and rest. An input becomes a vector where fewer divisions say
    which of its elements are read. `ScheduleError` unless the kernel is one stage without sums.

    y[w, c] = x[c, w] + b[c]     ->     y[w_c] = x[w_c % 3, w_c // 3] + b[w_c % 3]
    """
    output = kernel.output
    names = [axis.name for axis in output.axes]
    if len(kernel.stages) > 1 or output.reduce_axes:
        raise ScheduleError(f"{kernel.name} computes more than one thing, or sums")
    if first not in names or names[names.index(first) + 1 :][:1] != [second]:
        raise ScheduleError(f"{first} and {second} are not adjacent axes of {output.name}")
    if kernel.limited_within(names.index(second)):
        raise ScheduleError(f"{second} ends at run time, before the next of {first} begins")
    position = names.index(first)
    outer, inner = output.axes[position : position + 2]
    both = Axis(f"{first}_{second}", outer.extent * inner.extent, inner.role)
    axes = (*output.axes[:position], both, *output.axes[position + 2 :])
    ranges = {axis.name: (0, axis.extent - 1) for axis in axes}
    body = _over(output.body, both.name, outer, inner)
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    flat = _flat_loads(body, shapes, ranges, set(kernel.pitches))
    body = transform(body, lambda node: flat.get(node) if isinstance(node, Load) else None)
    vectors = {load.buffer for load in flat}
    return replace(
        kernel,
        inputs=tuple(
            replace(buffer, shape=(buffer.type.size,)) if buffer.name in vectors else buffer
            for buffer in kernel.inputs
        ),
        stages=(Stage(output.name, axes, (), "", body),),
    ).checked_rows()


def divisions(kernel: FusedKernel) -> int:
    """How many different divisions of positions the result is computed with."""
    return len(
        {
            node
            for node in postorder(kernel.output.body)
            if isinstance(node, Binary)
            and node.op in ("floordiv", "mod")
            and node.dtype is DType.I64
        }
    )


def _over(body: Expr, both: str, outer: Axis, inner: Axis) -> Expr:
    """The body with the two axes as quotient and rest, and bounds of the outer one as of both."""
    whole, width = index(both), integer(inner.extent)
    values = {
        outer.name: binary("floordiv", whole, width),
        inner.name: binary("mod", whole, width),
    }

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Index):
            return values.get(node.name)
        if isinstance(node, Binary) and node.op in _BOUNDS and isinstance(node.right, Const):
            return _bound(node, outer.name, whole, inner.extent)
        return None

    return transform(body, visit)


def _bound(node: Binary, axis: str, whole: Expr, width: int) -> Expr | None:
    """`axis + a < b` over the whole, if it is that."""
    if node.left.dtype is not DType.I64 or not isinstance(node.right, Const):
        return None
    form = affine(node.left, {})
    if form.terms != ((axis, 1),):
        return None
    op, beyond = _BOUNDS[node.op]
    limit = (int(node.right.value) - form.constant + beyond) * width
    return binary(op, whole, integer(limit))


def _flat_loads(
    body: Expr, shapes: Mapping[str, tuple[int, ...]], ranges: Ranges, apart: Set[str]
) -> dict[Load, Expr]:
    """Loads of inputs as loads of vectors, where that takes fewer divisions every time, or none.

    But for those whose rows lie `apart`.
    """
    flat: dict[Load, Expr] = {}
    uneven: set[str] = set(apart)
    for load in loads(body):
        form, stride, before = Affine(0, ()), 1, 0
        for extent, item in zip(reversed(shapes[load.buffer]), reversed(load.indices), strict=True):
            part = affine(item, ranges)
            form, before = form.plus(part, stride), before + part.divisions
            stride *= extent
        form = rejoined(form, ranges)
        if form.divisions < before or not before:
            flat[load] = Load(load.dtype, load.buffer, (form.to_expr(),))
        else:
            uneven.add(load.buffer)
    return {load: vector for load, vector in flat.items() if load.buffer not in uneven}
