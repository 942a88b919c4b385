"""Inline: what a stage computes, instead of loads from it."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.expr.walk import substitute, transform
from tunefarm.compiler.kernels.stage import Stage


def inline(body: Expr, stage: Stage) -> Expr:
    """`body` with what `stage` computes instead of loads from it."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.buffer != stage.name:
            return None
        indices = [inline(item, stage) for item in node.indices]
        axes = [axis.name for axis in stage.axes]
        return substitute(stage.body, dict(zip(axes, indices, strict=True)))

    return transform(body, visit)
