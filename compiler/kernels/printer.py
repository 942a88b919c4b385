"""Kernels as readable text.

    kernel conv_relu (anchor conv)
      input in0: f32[1, 64, 56, 56]
      input in1: f32[64, 64, 3, 3] constant
      pad[n=1, c=64, h=58, w=58]: f32 =
        select(h >= 1 and h < 57 and w >= 1 and w < 57, in0[n, c, h - 1, w - 1], 0.0)
      conv[n=1, oc=64, oh=56, ow=56]: f32 = sum over ic=64, kh=3, kw=3 of
        pad[n, ic, oh + kh, ow + kw] * in1[oc, ic, kh, kw]

A long expression that occurs more than once is printed once, as `where t0 = ...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunefarm.compiler.expr.functions import BINARY
from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import (
    FunctionCall,
    FusedKernel,
    JoinCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
)
from tunefarm.compiler.kernels.serialize import ExpressionTable
from tunefarm.compiler.kernels.stage import Axis, Stage

_ATOM = 9
_LONG = 32  # a shared expression with a longer text gets a name


def format_kernel(kernel: FusedKernel) -> str:
    """The whole kernel, one stage after the other, ending with a newline."""
    lines = [f"kernel {kernel.name} (anchor {kernel.anchor})"]
    for buffer in kernel.inputs:
        lines.append(f"  input {buffer.name}: {buffer.type}{' constant' * buffer.constant}")
    for limit in kernel.limits:
        place = f"{kernel.output.name} place // {limit.stride} % {limit.extent}"
        more = f" + {limit.offset}" if limit.offset else ""
        lines.append(f"  needed where {place} < {limit.sizes}[{limit.number}]{more}")
    if kernel.sizes:
        lines.append(f"  tuned at sizes {', '.join(map(str, kernel.sizes))}")
    if kernel.leaves_rest:
        lines.append("  behind the rows that it writes over an input the result may stay")
    for stage in kernel.stages:
        lines.extend("  " + line for line in _stage_lines(stage))
    return "\n".join(lines) + "\n"


def format_kernel_program(program: KernelProgram) -> str:
    """The calls, views and joins of a model in order, then each distinct kernel."""
    lines = [f"program {program.name}({', '.join(program.inputs)})"]
    for call in program.calls:
        if isinstance(call, KernelCall):
            arguments = ", ".join(call.inputs)
            where = f" where {' and '.join(map(str, call.guards))}" if call.guards else ""
            lines.append(f"  {call.output} = {call.kernel.name}<{call.key}>({arguments}){where}")
        elif isinstance(call, FunctionCall):
            arguments = ", ".join(name or "-" for name in call.inputs)
            results = ", ".join(call.outputs)
            where = f" where {' and '.join(map(str, call.guards))}" if call.guards else ""
            lines.append(f"  {results} = function {call.name}({arguments}) {call.arguments}{where}")
        elif isinstance(call, LoopBegin | LoopEnd):
            lines.append(f"  {_loop_text(call)}")
        elif isinstance(call, JoinCall):
            lines.append(f"  {call.output} = join {', '.join(call.inputs)}")
        else:
            start = f" from byte {call.offset} on" if call.offset else ""
            type = program.types[call.output]
            lines.append(f"  {call.output} = view {call.input} as {type}{start}")
    lines.append(f"  return {', '.join(program.outputs)}")
    for key, (call, *_) in program.kernel_calls().items():
        lines.append(f"\n<{key}>\n{format_kernel(call.kernel)}")
    return "\n".join(lines)


def _loop_text(call: LoopBegin | LoopEnd) -> str:
    """Where a loop begins or ends."""
    if isinstance(call, LoopBegin):
        ends = f"{call.limit or call.most} steps, at most {call.most}"
        asked = f", if {call.first}" if call.first else ""
        states = ", ".join(
            f"{state} = {initial}" for state, initial in zip(call.states, call.initial, strict=True)
        )
        where = f" where {' and '.join(map(str, call.guards))}" if call.guards else ""
        step = f" {call.index}" if call.index else ""
        return f"loop {call.loop}{step} of {ends}{asked}: {states}{where}"
    again = f" again if {call.again}" if call.again else ""
    names = ", ".join(name or "-" for name in call.results)
    return (
        f"{names} = end of loop {call.loop}{again}: next {', '.join(call.following) or '-'}; "
        f"rows {', '.join(call.collected) or '-'}"
    )


def format_expression(expr: Expr) -> str:
    """One expression on one line; shared parts are written out where they are long only once."""
    lines = _expression_lines(expr)
    return " ".join(line.strip() for line in lines)


def _stage_lines(stage: Stage) -> list[str]:
    head = f"{stage.name}[{_axes(stage.axes)}]: {stage.dtype} ="
    if stage.reduce_axes:
        wide = f" in {stage.accumulator}" if stage.accumulator else ""
        head += f" {stage.combiner}{wide} over {_axes(stage.reduce_axes)} of"
    return [head, *("  " + line for line in _expression_lines(stage.body))]


def _axes(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name}={axis.extent}" for axis in axes)


def _expression_lines(expr: Expr) -> list[str]:
    table = ExpressionTable()
    root = table.add(expr)
    uses = [0] * len(table.rows)
    for operands in table.operands:
        for operand in operands:
            uses[operand] += 1
    texts: list[tuple[str, int]] = []
    bindings: list[str] = []
    for number, row in enumerate(table.rows):
        text, precedence = _format_row(row, texts)
        if uses[number] > 1 and len(text) > _LONG and number != root:
            name = f"t{len(bindings)}"
            bindings.append(f"where {name} = {text}")
            text, precedence = name, _ATOM
        texts.append((text, precedence))
    return [texts[root][0], *bindings]


def _format_row(row: list[Any], texts: list[tuple[str, int]]) -> tuple[str, int]:
    match row[0]:
        case "const":
            return str(row[2]), _ATOM
        case "index":
            return row[1], _ATOM
        case "load":
            return f"{row[2]}[{', '.join(texts[i][0] for i in row[3])}]", _ATOM
        case "unary":
            return f"{row[2]}({texts[row[3]][0]})", _ATOM
        case "binary":
            return _format_binary(row[2], texts[row[3]], texts[row[4]])
        case "select":
            return f"select({', '.join(texts[i][0] for i in row[1:])})", _ATOM
        case _:
            return f"{row[1]}({texts[row[2]][0]})", _ATOM


def _format_binary(op: str, left: tuple[str, int], right: tuple[str, int]) -> tuple[str, int]:
    infix = BINARY[op].infix if op in BINARY else None
    if infix is None:
        return f"{op}({left[0]}, {right[0]})", _ATOM
    sign, precedence = infix
    chains = BINARY[op].result is None  # a == b == c would be read otherwise
    left_fits = left[1] > precedence or (chains and left[1] == precedence)
    left_text = left[0] if left_fits else f"({left[0]})"
    associative = op in ("and", "or")
    right_fits = right[1] > precedence or (associative and right[1] == precedence)
    right_text = right[0] if right_fits else f"({right[0]})"
    return f"{left_text} {sign} {right_text}", precedence
