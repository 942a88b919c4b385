"""Pass: remove what computes nothing, and merge moves of data with their neighbours.

Each rule looks at one node whose inputs are simplified already and either names the value that
stands for the result, or declines with None. Rules are exact, but for the sign of zero in x + 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.infer_types import node_type
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute

Rule: TypeAlias = Callable[[Rewriter, Node], "str | None"]
_MAXIMUM_ROUNDS = 20


def run(graph: Graph) -> Graph:
    """The simplified graph without dead code; rules are applied until none fits."""
    for _ in range(_MAXIMUM_ROUNDS):
        graph, changed = _round(graph)
        if not changed:
            break
    return graph


def _round(graph: Graph) -> tuple[Graph, bool]:
    rewriter = Rewriter(graph)
    changed = False
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        replacement = _apply(rewriter, resolved)
        if replacement is None:
            rewriter.keep(resolved)
        else:
            rewriter.forward(node.output, replacement)
            changed = True
    return dead_code.run(rewriter.finish()), changed


def _apply(rewriter: Rewriter, node: Node) -> str | None:
    for rule in (*_DECLARED, *_RULES.get(node.operator, ()), _operand_without_expand):
        replacement = rule(rewriter, node)
        if replacement is not None:
            return replacement
    return None


# --- what computes nothing ----------------------------------------------------------------------


def _identity(rewriter: Rewriter, node: Node) -> str | None:
    graph, source = rewriter.graph, node.inputs[0]
    owned = source in rewriter.producers and source not in graph.outputs
    # An output must stay a value of its own: that is what an identity there is for.
    return source if owned or node.output not in graph.outputs else None


def _same_type(rewriter: Rewriter, node: Node) -> str | None:
    if not operator(node.operator).identity_if_same_type:
        return None
    return node.inputs[0] if _keeps_type(rewriter, node) else None


def _keeps_type(rewriter: Rewriter, node: Node, position: int = 0) -> bool:
    return rewriter.types[node.inputs[position]] == rewriter.types[node.output]


def _no_op_slice(rewriter: Rewriter, node: Node) -> str | None:
    forwards = all(step == 1 for step in _ints(node, "steps"))
    return node.inputs[0] if forwards and _keeps_type(rewriter, node) else None


def _no_op_pad(rewriter: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if not any(_ints(node, "pads")) else None


def _no_op_clip(rewriter: Rewriter, node: Node) -> str | None:
    attributes = complete_attributes(node)
    unbounded = attributes["min"] is None and attributes["max"] is None
    return node.inputs[0] if unbounded else None


def _one_part(rewriter: Rewriter, node: Node) -> str | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _neutral_operand(rewriter: Rewriter, node: Node) -> str | None:
    """x op neutral is x, if the other operand does not widen the shape."""
    definition = operator(node.operator)
    if definition.neutral is None:
        return None
    for kept, other in ((0, 1), (1, 0)) if definition.commutes else ((0, 1),):
        constant = rewriter.constants.get(node.inputs[other])
        if constant is None or not _keeps_type(rewriter, node, kept):
            continue
        if np.all(constant == definition.neutral):
            return node.inputs[kept]
    return None


def _fold_of_unit_axes(rewriter: Rewriter, node: Node) -> str | None:
    if not operator(node.operator).folds_axes:
        return None
    source, result = rewriter.types[node.inputs[0]], rewriter.types[node.output]
    if source.size != result.size or source.dtype is not result.dtype:
        return None
    return _reshaped(rewriter, node, node.inputs[0])


# --- merging ------------------------------------------------------------------------------------


def _reshaped(rewriter: Rewriter, node: Node, source: str) -> str:
    """`source` in the shape of the node's result."""
    shape = rewriter.types[node.output].shape
    return rewriter.emit("reshape", (source,), {"shape": shape}, like=node, output=node.output)


def _reshape_of_reshape(rewriter: Rewriter, node: Node) -> str | None:
    before = rewriter.producers.get(node.inputs[0])
    if before is None or operator(before.operator).pattern is not Pattern.VIEW:
        return None
    if rewriter.types[before.inputs[0]].size != rewriter.types[node.output].size:
        return None
    return _reshaped(rewriter, node, before.inputs[0])


def _transpose(rewriter: Rewriter, node: Node) -> str | None:
    source, perm = node.inputs[0], _ints(node, "perm")
    shape = rewriter.types[source].shape
    moved = [axis for axis in perm if shape[axis] != 1]
    if list(perm) == sorted(perm):
        return source
    if moved == sorted(moved):  # only axes of extent 1 change places
        return _reshaped(rewriter, node, source)
    before = rewriter.producers.get(source)
    if before is None or before.operator != "transpose":
        return None
    first = _ints(before, "perm")
    composed = tuple(first[axis] for axis in perm)
    attributes: dict[str, Attribute] = {"perm": composed}
    return rewriter.emit("transpose", before.inputs, attributes, like=node, output=node.output)


def _division_by_power_of_two(rewriter: Rewriter, node: Node) -> str | None:
    """x / 2^k is x * 2^-k exactly; multiplication is much faster."""
    divisor = rewriter.constants.get(node.inputs[1])
    if divisor is None or divisor.dtype not in (np.float32, np.float64):
        return None
    values = divisor.astype(np.float64)
    mantissa, exponent = np.frexp(values)
    limit = 125 if divisor.dtype == np.float32 else 1021  # the reciprocal stays a normal number
    if np.any(np.abs(mantissa) != 0.5) or np.any(np.abs(exponent) > limit):
        return None
    factor = rewriter.constant((1 / values).astype(divisor.dtype), f"{node.inputs[1]}_reciprocal")
    return rewriter.emit("mul", (node.inputs[0], factor), like=node, output=node.output)


def _product(rewriter: Rewriter, node: Node) -> str | None:
    """x^2 is x x, which is cheap; x^3 of integers, which are raised in f64 else, is x x x."""
    base, exponent = node.inputs
    power, dtype = rewriter.constants.get(exponent), rewriter.types[base].dtype
    if power is None or not _keeps_type(rewriter, node):
        return None
    if np.all(power == 2):
        return rewriter.emit("mul", (base, base), like=node, output=node.output)
    if dtype.is_integer and np.all(power == 3):
        square = rewriter.emit("mul", (base, base), like=node)
        return rewriter.emit("mul", (square, base), like=node, output=node.output)
    return None


def _operand_without_expand(rewriter: Rewriter, node: Node) -> str | None:
    """Pointwise operators broadcast by themselves: read the source of an expand where that fits."""
    if operator(node.operator).pattern is not Pattern.ELEMENTWISE or len(node.inputs) < 2:
        return None
    inputs = tuple(
        before.inputs[0]
        if (before := rewriter.producers.get(name)) is not None and before.operator == "expand"
        else name
        for name in node.inputs
    )
    if inputs == node.inputs:
        return None
    bare = replace(node, inputs=inputs)
    try:
        fits = node_type(bare, rewriter.types) == rewriter.types[node.output]
    except ShapeError:
        return None
    return _emit_like(rewriter, bare, node.attributes) if fits else None


def _inverse_layout(rewriter: Rewriter, node: Node) -> str | None:
    """to_blocked after from_blocked and the reverse. The first drops lanes that pad channels, so
    that pair is only removed where there are none."""
    before = rewriter.producers.get(node.inputs[0])
    inverse = {"to_blocked": "from_blocked", "from_blocked": "to_blocked"}[node.operator]
    if before is None or before.operator != inverse:
        return None
    source = before.inputs[0]
    if rewriter.types[source] != rewriter.types[node.output]:
        return None
    if node.operator == "to_blocked":
        channels = rewriter.types[node.inputs[0]].shape[1]
        if channels % complete_attributes(node).integer("block"):
            return None
    return source


# --- explicit padding before windows ------------------------------------------------------------


def _pad_before_window(rewriter: Rewriter, node: Node) -> str | None:
    """conv(pad(x)) and pool(pad(x)) with the padding in the window operator's own pads.

    The padding must be what the operator assumes outside of its data; in averages it has to count.
    """
    outside = operator(node.operator).outside
    pad = rewriter.producers.get(node.inputs[0]) if outside else None
    if outside is None or pad is None or pad.operator != "pad":
        return None
    attributes = complete_attributes(node)
    if attributes["layout"] != "NCHW":
        return None
    if complete_attributes(pad)["mode"] != "constant":
        return None
    fill = _pad_value(rewriter, pad)
    own = outside(attributes, rewriter.types[node.inputs[0]].dtype)
    pads = _ints(pad, "pads")
    rank = len(pads) // 2
    outer = (*pads[:2], *pads[rank : rank + 2])
    if fill is None or fill != own or any(outer) or min(pads) < 0:
        return None
    merged: dict[str, Attribute] = dict(node.attributes)
    spatial = (*pads[2:rank], *pads[rank + 2 :])
    old = _ints(node, "pads") or (0,) * len(spatial)
    if "count_include_pad" in attributes:
        if any(old) and not attributes["count_include_pad"]:
            return None
        merged["count_include_pad"] = True
    if any(begin < 0 for begin in old):
        return None
    merged["pads"] = tuple(a + b for a, b in zip(old, spatial, strict=True))
    bare = replace(node, inputs=(pad.inputs[0], *node.inputs[1:]))
    return _emit_like(rewriter, bare, merged)


def _pad_value(rewriter: Rewriter, pad: Node) -> float | None:
    """The constant that the node pads with; None if a run computes it."""
    if len(pad.inputs) < 2 or not pad.inputs[1]:
        value = complete_attributes(pad)["value"]
        return float(value) if isinstance(value, (int, float)) else None
    constant: Array | None = rewriter.constants.get(pad.inputs[1])
    return None if constant is None else float(constant.reshape(-1)[0])


# --- helpers ------------------------------------------------------------------------------------


def _emit_like(rewriter: Rewriter, node: Node, attributes: Mapping[str, Attribute]) -> str:
    return rewriter.emit(node.operator, node.inputs, attributes, like=node, output=node.output)


def _ints(node: Node, name: str) -> tuple[int, ...]:
    return complete_attributes(node).integers(name)


def _gather_of_choice(rewriter: Rewriter, node: Node) -> str | None:
    """Rows of one of two constant tables: they are taken of both, and no table is copied.

    LongRoPE chooses its tables by the number of tokens.
    """
    choice = rewriter.producers.get(node.inputs[0])
    if choice is None or choice.operator != "choose":
        return None
    condition, *tables = choice.inputs
    taken, whole = (rewriter.types[name].bytes for name in (node.output, choice.output))
    if taken >= whole or not all(name in rewriter.constants for name in tables):
        return None
    attributes, unread = node.attributes, rewriter.graph.unread.get(node.output)
    rows = [
        rewriter.emit("gather", (table, *node.inputs[1:]), attributes, like=node)
        for table in tables
    ]
    result = rewriter.emit("choose", (condition, *rows), like=choice)
    if unread is not None:
        for name in (*rows, result):
            rewriter.note_unread(name, unread)
    return result


_RULES: dict[str, tuple[Rule, ...]] = {
    "identity": (_identity,),
    "div": (_division_by_power_of_two,),
    "clip": (_no_op_clip,),
    "pow": (_product,),
    "reshape": (_reshape_of_reshape,),
    "slice": (_no_op_slice,),
    "pad": (_no_op_pad,),
    "concat": (_one_part,),
    "gather": (_gather_of_choice,),
    "transpose": (_transpose,),
    "to_blocked": (_inverse_layout,),
    "from_blocked": (_inverse_layout,),
}
# Rules of whatever operator is declared to be so.
_DECLARED: tuple[Rule, ...] = (
    _same_type,
    _neutral_operand,
    _fold_of_unit_axes,
    _pad_before_window,
)
