"""Names that tools write for dynamic dimensions: usual bounds, and sums and products of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from typing import Final

from tunefarm.compiler.types.extents import Label
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide

_USUAL: Final[tuple[tuple[str, tuple[int, int]], ...]] = (
    (r"n|b|bs|batch|batch_?size|n_?batch|num_?batch(es)?|.*_batch(_size)?", (1, 8)),
    (r"past(_.*)?|cache(_.*)?|.*_past(_.*)?", (0, 511)),
    (r"total(_.*)?|.*\+.*", (1, 1024)),
    (r"h|w|height|width|.*_height|.*_width|image_size", (32, 640)),
    (r"s|t|l|seq|sequence|tokens?|length|time|frames|.*_?seq(uence)?(_?len(gth)?)?", (1, 512)),
)


def usual_bounds(name: str) -> tuple[int, int] | None:
    """Bounds for a symbol that the user has none for, by its name; None for other names."""
    lower = name.strip().lower().replace("-", "_").replace(" ", "_")
    return next((bounds for form, bounds in _USUAL if re.fullmatch(form, lower)), None)


def expression_names(text: str) -> frozenset[str]:
    """The names in a dimension such as `past + 1`; none of other text, and of a name alone."""
    tree = _parsed(text)
    if tree is None or isinstance(tree, ast.Name):
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def expression_size(text: str, sizes: Mapping[str, Dimension]) -> Dimension | None:
    """What a dimension such as `past + 1` is for these sizes; None where that is not known."""
    tree = _parsed(text)
    size = None if tree is None else _evaluated(tree, sizes)
    return None if size is None or bounds_of(size)[0] < 0 else size


def computed_labels(labels: Collection[Label]) -> set[Label]:
    """Those of these dimensions whose names are sums and products of the names of others."""
    return {
        label
        for label in labels
        if isinstance(label, str) and (names := expression_names(label)) and names <= set(labels)
    }


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _evaluated(tree: ast.expr, sizes: Mapping[str, Dimension]) -> Dimension | None:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes.get(name)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluated(left, sizes), _evaluated(right, sizes)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv() if bounds_of(b)[0] >= 1:
                    return divide(a, b)
    return None
