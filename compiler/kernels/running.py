"""Running reductions: each element combines those up to its own position along an axis.

y[i, j] = sum over r < 97 of select(r <= j, x[i, r], 0)

As an expression that is a reduction of a triangle, which takes as many steps as there are pairs;
walked along the axis it takes one step per element. This is the one place that knows the form.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import Binary, Expr, Select, index, integer, sub
from tunefarm.compiler.expr.walk import axes_of, substitute
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.frozen import frozen

_ORDERS = {"le": (False, False), "lt": (True, False), "ge": (False, True), "gt": (True, True)}


@frozen
class RunningReduction:
    """What a stage combines along `axis`: `element`, over the stage's axes.

    The element's own position counts unless it is `exclusive`; in `reverse`, those behind it do.
    """

    axis: str
    extent: int
    element: Expr
    exclusive: bool
    reverse: bool

    def walked(self, stage: Stage) -> Stage:
        """The elements of the stage in the order in which they are combined."""
        if not self.reverse:
            return replace(stage, reduce_axes=(), combiner="", body=self.element)
        backwards = sub(integer(self.extent - 1), index(self.axis))
        body = substitute(self.element, {self.axis: backwards})
        return replace(stage, reduce_axes=(), combiner="", body=body)


def running_reduction(stage: Stage) -> RunningReduction | None:
    """The stage as a running reduction, None if it is another."""
    body = stage.body
    if len(stage.reduce_axes) != 1 or stage.accumulator is not None or not isinstance(body, Select):
        return None
    (reduced,), bound = stage.reduce_axes, body.condition
    if body.otherwise != neutral_element(stage.combiner, body.dtype):
        return None
    if not isinstance(bound, Binary) or bound.op not in _ORDERS:
        return None
    if bound.left != index(reduced.name):
        return None
    axis = next((axis for axis in stage.axes if bound.right == index(axis.name)), None)
    if axis is None or axis.extent != reduced.extent or axis.name in axes_of(body.then):
        return None
    element = substitute(body.then, {reduced.name: index(axis.name)})
    return RunningReduction(axis.name, axis.extent, element, *_ORDERS[bound.op])
