"""The nodes that an attention becomes which is found decomposed: the operator, and views."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tunefarm.compiler.graph.causal_masks import HIDDEN, Diagonals, Offset
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

Perm = tuple[int, ...]


@frozen
class Operand:
    """A value whose axes, in the order `perm`, are a stack of matrices [..., position, feature]."""

    value: str
    perm: Perm


@frozen
class Mask:
    """What is added to the scores, or, of bool, where they stay (`masked` elsewhere)."""

    value: str
    inverted: bool = False  # they stay where it is false


@frozen
class Ends:
    """Which keys there are, if that is dynamic: those below an element of a vector of sizes and,
    with `since`, not below another one."""

    sizes: str = ""
    number: int = -1
    since: int = -1


@frozen
class Match:
    """The parts of an attention that ends in the node `last`."""

    last: Node
    query: Operand
    key: Operand
    value: Operand
    perm: Perm  # of the result
    scale: float
    masks: tuple[Mask, ...]
    masked: float
    seen: Diagonals = field(default_factory=Diagonals)  # bounds of the keys that a query sees
    softcap: float = 0.0  # scores are softcap * tanh(scale * score) before masks; 0: they are not
    sink: str = ""  # one more score of each row, without a value: [..., rows or 1, 1]
    empty: str = ""  # where rows of weights are zeros, however they are masked; "": nowhere
    ends: Ends = Ends()
    zeroed: bool = False  # weights that are NaN are zeros
    groups: int = 0  # of heads that share their keys and values; 0: each head has its own
    narrow: bool = False  # queries, keys and values are multiplied as they are, and summed in f32


def emit_attention(rewriter: Rewriter, match: Match) -> None:
    """The operator and, where heads share keys, views that give groups an axis of their own."""
    masks = [_mask(rewriter, match, mask) for mask in match.masks]
    bounds = (_bounds(rewriter, match, masks),) if match.seen else ()
    masks += [_sink(rewriter, match)] if match.sink else []
    query, key, value, perm = match.query, match.key, match.value, match.perm
    shape = rewriter.graph.types[match.last.output].shape
    if match.groups and rewriter.types[rewriter.value(query.value)].shape[query.perm[-2]] == 1:
        # One query of each head: the heads of a group are the queries of their keys.
        query, key, value = (
            _joined(rewriter, match),
            _ungrouped(rewriter, match, key),
            _ungrouped(rewriter, match, value),
        )
        masks = [_joined_mask(rewriter, match, mask) for mask in masks]
        perm = plain_order(len(perm))
    elif match.groups:
        head = len(perm) - 3
        query = _grouped(rewriter, match, query)
        masks = [_grouped_mask(rewriter, match, mask) for mask in masks]
        perm = _split_perm(perm, head)
    ends = match.ends
    sizes = (ends.sizes,) if ends.sizes else ()
    inputs = (query.value, key.value, value.value, *masks, *sizes, *bounds)
    attributes: dict[str, Attribute] = {
        "query_perm": query.perm,
        "key_perm": key.perm,
        "value_perm": value.perm,
        "perm": perm,
        "scale": match.scale,
        "masked": match.masked,
        **({"softcap": match.softcap} if match.softcap else {}),
        **({"filled": ends.number} if ends.sizes else {}),
        **({"since": ends.since} if ends.since >= 0 else {}),
        **({"causal": True} if match.seen else {}),
        **({"zeroed": True} if match.zeroed else {}),
        **({"sink": True} if match.sink else {}),
        **({"accumulator": DType.F32.value} if match.narrow else {}),
    }
    kept = operator("attention").factors if match.narrow else 0
    operands = (
        *(rewriter.value(name) for name in inputs[:kept]),
        *(_widened(rewriter, match, rewriter.value(name)) for name in inputs[kept:]),
    )
    dtype = rewriter.graph.types[match.last.output].dtype
    nodes: list[tuple[str, tuple[str, ...], dict[str, Attribute]]] = [
        ("attention", operands, attributes)
    ]
    if dtype is not dtype.wide:
        nodes.append(("cast", (), {"to": str(dtype)}))
    if match.groups:
        nodes.append(("reshape", (), {"shape": shape}))
    if match.empty:
        zero = rewriter.constant(np.zeros((), dtype.numpy), f"{match.last.output}_zero")
        nodes.append(("where", (_rows(rewriter, match), zero), {}))
    result: tuple[str, ...] = ()
    for number, (name, first, given) in enumerate(nodes, 1):
        output = match.last.output if number == len(nodes) else ""
        result = (rewriter.emit(name, (*first, *result), given, like=match.last, output=output),)


def _widened(rewriter: Rewriter, match: Match, name: str) -> str:
    """An operand in the type that is computed in: converted once, and before it is viewed, where
    what makes it may do so."""
    dtype = rewriter.types[name].dtype
    if not dtype.is_float or dtype is dtype.wide:
        return name
    view = rewriter.producers.get(name)
    if view is not None and view.operator == "reshape":
        wide = _widened(rewriter, match, view.inputs[0])
        return _viewed(rewriter, match, wide, rewriter.types[name].shape)
    return rewriter.emit("cast", (name,), {"to": str(dtype.wide)}, like=match.last)


def _rows(rewriter: Rewriter, match: Match) -> str:
    """Where rows are empty, in the order of the result's axes."""
    value, rank = rewriter.value(match.empty), len(match.perm)
    shape = rewriter.types[value].shape
    whole = (*(1 for _ in range(rank - len(shape))), *shape)
    value = rewriter.emit("reshape", (value,), {"shape": whole}, like=match.last)
    return rewriter.emit("transpose", (value,), {"perm": match.perm}, like=match.last)


def _mask(rewriter: Rewriter, match: Match, mask: Mask) -> str:
    if not mask.inverted:
        return mask.value
    return rewriter.emit("not", (rewriter.value(mask.value),), like=match.last)


def _bounds(rewriter: Rewriter, match: Match, masks: list[str]) -> str:
    """The bounds of key number - query number: below the first one, not below the second.

    Where other masks may hide all keys of a query by a finite number, these count alike: then none
    is left out.
    """
    seen, like = match.seen, match.last
    parts = [_extreme(rewriter, match, tuple(item.plus(Offset(1)) for item in seen.last), "max")]
    if seen.first:
        parts.append(_extreme(rewriter, match, seen.first, "min"))
    if masks and seen.finite:
        shape = rewriter.types[rewriter.value(match.key.value)].shape
        every = rewriter.constant(np.array([shape[match.key.perm[-2]]]), f"{like.output}_keys")
        shown = (_shows_first(rewriter, match, masks),)
        parts = [rewriter.emit("where", (*shown, parts[0], every), {}, like=like)]
    if len(parts) == 1:
        return parts[0]
    return rewriter.emit("concat", tuple(parts), {"axis": 0}, like=like)


def _extreme(rewriter: Rewriter, match: Match, offsets: tuple[Offset, ...], name: str) -> str:
    """The largest (`max`) or smallest (`min`) of offsets over all matrices, i64[1]."""
    like, results = match.last, list[str]()
    for offset in offsets:
        total = rewriter.constant(np.array([offset.constant]), f"{like.output}_offset")
        for sign, term in offset.terms:
            value = rewriter.value(term)
            if rewriter.types[value].dtype is not DType.I64:
                value = rewriter.emit("cast", (value,), {"to": str(DType.I64)}, like=like)
            if rewriter.types[value].size > 1:
                largest = (sign > 0) == (name == "max")
                axes = tuple(range(len(rewriter.types[value].shape)))
                operator = "reduce_max" if largest else "reduce_min"
                given: dict[str, Attribute] = {"axes": axes, "keepdims": False}
                value = rewriter.emit(operator, (value,), given, like=like)
            value = _viewed(rewriter, match, value, (1,))
            total = rewriter.emit("add" if sign > 0 else "sub", (total, value), {}, like=like)
        results.append(total)
    first, *rest = results
    for other in rest:
        first = rewriter.emit(name, (first, other), {}, like=like)
    return first


def _shows_first(rewriter: Rewriter, match: Match, masks: list[str]) -> str:
    """Whether no mask hides the first key from any query, bool[1]."""
    like, shown = match.last, ""
    for name in masks:
        value = rewriter.value(name)
        type = rewriter.types[value]
        rank = len(type.shape)
        part: dict[str, Attribute] = {
            "shape": (*type.shape[:-1], 1),
            "starts": (0,) * rank,
            "steps": (1,) * rank,
        }
        value = rewriter.emit("slice", (value,), part, like=like)
        if type.dtype is not DType.BOOL:
            low = rewriter.constant(np.array(HIDDEN, type.dtype.numpy), f"{like.output}_hidden")
            value = rewriter.emit("greater", (value, low), {}, like=like)
        value = rewriter.emit("cast", (value,), {"to": str(DType.I64)}, like=like)
        axes = tuple(range(rank))
        given: dict[str, Attribute] = {"axes": axes, "keepdims": False}
        value = rewriter.emit("reduce_min", (value,), given, like=like)
        value = rewriter.emit("cast", (value,), {"to": str(DType.BOOL)}, like=like)
        value = _viewed(rewriter, match, value, (1,))
        shown = value if not shown else rewriter.emit("and", (shown, value), {}, like=like)
    return shown


def _sink(rewriter: Rewriter, match: Match) -> str:
    """The sink with as many axes as the scores."""
    value, rank = rewriter.value(match.sink), len(match.perm)
    shape = rewriter.types[value].shape
    if len(shape) == rank:
        return value
    return _viewed(rewriter, match, value, (*(1 for _ in range(rank - len(shape))), *shape))


def _split_perm(perm: Perm, axis: int) -> Perm:
    """The order once the axis number `perm[...] == axis` is two axes, both in its place."""
    moved = [item + 1 if item > axis else item for item in perm]
    place = moved.index(axis)
    return (*moved[: place + 1], axis + 1, *moved[place + 1 :])


def _grouped(rewriter: Rewriter, match: Match, operand: Operand) -> Operand:
    """The operand with its heads as groups x heads of a group."""
    shape = rewriter.types[rewriter.value(operand.value)].shape
    axis = operand.perm[-3]
    split = (*shape[:axis], match.groups, shape[axis] // match.groups, *shape[axis + 1 :])
    value = rewriter.value(operand.value)
    return Operand(_viewed(rewriter, match, value, split), _split_perm(operand.perm, axis))


def _joined(rewriter: Rewriter, match: Match) -> Operand:
    """One query of each head as the queries of the groups."""
    value, perm = rewriter.value(match.query.value), match.query.perm
    shape = [rewriter.types[value].shape[axis] for axis in perm]
    joined = (*shape[:-3], match.groups, shape[-3] // match.groups, shape[-1])
    return Operand(_viewed(rewriter, match, value, joined), plain_order(len(perm)))


def _ungrouped(rewriter: Rewriter, match: Match, operand: Operand) -> Operand:
    """[..., groups, 1, positions, features] without the axis of one."""
    value, place = rewriter.value(operand.value), len(operand.perm) - 3
    shape = rewriter.types[value].shape
    perm = tuple(axis - (axis > place) for axis in operand.perm if axis != place)
    return Operand(_viewed(rewriter, match, value, (*shape[:place], *shape[place + 1 :])), perm)


def _joined_mask(rewriter: Rewriter, match: Match, mask: str) -> str:
    """A mask whose heads are groups x their queries."""
    value = rewriter.value(mask)
    shape = rewriter.types[value].shape
    if len(shape) < 3 or shape[-3] == 1:
        return value
    joined = (*shape[:-3], match.groups, shape[-3] // match.groups, shape[-1])
    return _viewed(rewriter, match, value, joined)


def _viewed(rewriter: Rewriter, match: Match, value: str, shape: tuple[int, ...]) -> str:
    return rewriter.emit("reshape", (value,), {"shape": shape}, like=match.last)


def _grouped_mask(rewriter: Rewriter, match: Match, mask: str) -> str:
    """A mask whose heads, the third axis from behind, are groups x heads of a group."""
    value = rewriter.value(mask)
    shape = rewriter.types[value].shape
    if len(shape) < 3:
        return value
    heads = (1, 1) if shape[-3] == 1 else (match.groups, shape[-3] // match.groups)
    split = (*shape[:-3], *heads, *shape[-2:])
    return _viewed(rewriter, match, value, split)


def plain_order(rank: int) -> Perm:
    """The axes as they lie."""
    return tuple(range(rank))
