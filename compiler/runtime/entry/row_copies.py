"""Functions in LLVM IR that copy rows between dense arrays and padded places."""

from __future__ import annotations

from collections.abc import Callable

from tunefarm.compiler.runtime.entry.ir_body import IrBody
from tunefarm.compiler.runtime.spec.port_layout import PortLayout
from tunefarm.compiler.types.sizes import Dimension


def copy_function(
    name: str, layout: PortLayout, out: bool, operand: Callable[[IrBody, Dimension], str]
) -> str:
    """The function (to, from, numbers) that copies rows, `out` of their padded place or into it.

    `operand` writes what a dimension is, of the numbers.
    """
    body = IrBody()
    body.line("br label %begin")
    body.line("begin:")
    row = operand(body, layout.row)
    counts = [operand(body, level.count) for level in layout.levels]
    dense = [operand(body, level.dense) for level in layout.levels]
    target, source, before = "%to", "%from", "begin"
    for depth, level in enumerate(layout.levels):
        body.line(f"br label %head{depth}")
        body.line(f"head{depth}:")
        body.line(f"%i{depth} = phi i64 [ 0, %{before} ], [ %after{depth}, %next{depth} ]")
        more = body.value(f"icmp slt i64 %i{depth}, {counts[depth]}")
        leave = f"next{depth - 1}" if depth else "done"
        body.line(f"br i1 {more}, label %body{depth}, label %{leave}")
        body.line(f"body{depth}:")
        steps = (dense[depth], str(level.padded)) if out else (str(level.padded), dense[depth])
        target = _moved(body, target, f"%i{depth}", steps[0])
        source = _moved(body, source, f"%i{depth}", steps[1])
        before = f"body{depth}"
    body.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {row}, i1 false)")
    innermost = len(layout.levels) - 1
    body.line(f"br label %next{innermost}" if layout.levels else "br label %done")
    for depth in reversed(range(len(layout.levels))):
        body.line(f"next{depth}:")
        body.line(f"%after{depth} = add i64 %i{depth}, 1")
        body.line(f"br label %head{depth}")
    body.line("done:")
    body.line("ret void")
    return f"define internal void @{name}(ptr %to, ptr %from, ptr %numbers) {{\n{body}\n}}\n"


def _moved(body: IrBody, pointer: str, index: str, step: str) -> str:
    offset = body.value(f"mul i64 {index}, {step}")
    return body.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
