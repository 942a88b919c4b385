"""Scalar work: whether a loop nest does the bulk of its work element by element, and why.

Instructions are estimated statement by statement, as the emitter would make them: one for a vector
where lanes lie side by side, one for each lane where they do not, one for each element outside of
vectorised loops. What is written where memory says is written one by one on any machine: it does
not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from tunefarm.compiler.expr.affine import Affine, Atom, affine, decide, expr_range
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index, Load, Unary
from tunefarm.compiler.expr.walk import axes_of, children, loads, postorder
from tunefarm.compiler.llvm.shuffles import pieces_of
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Store,
    Update,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

MOST = 0.5  # of the estimated instructions that may be scalar
LEAST_WORK = 2000.0  # scalar instructions below which nobody would notice
MOST_LANES = 16  # of a loop that is not vectorised, whose accesses are looked at
GATHERED_BYTES = (4, 8)
LIBRARY_CALL = 20.0  # instructions
DIVISION = 10.0

_Ranges = dict[str, tuple[int, int]]


@frozen
class _Place:
    """Where a statement stands: what is known of the variables, and how often it runs.

    `ranges` are all values of the variables, `instance` those of one unrolled instance.
    """

    ranges: _Ranges
    instance: _Ranges
    loops: tuple[For, ...]
    buffers: Mapping[str, Memory]
    local: frozenset[str]  # buffers whose vectors are known where their indices are
    times: int = 1
    lane: For | None = None
    read: frozenset[str] = frozenset()  # variables whose values are read from memory


@frozen
class _Work:
    """Instructions of a statement, and why those are scalar that are."""

    vector: float
    scalar: float
    reason: str = ""


def scalar_work(nest: LoopNest, target: Target) -> str:
    """Why most of the nest's work is scalar on the target; empty if it is not."""
    buffers = {memory.name: memory for memory in (*nest.inputs, nest.output)}
    place = _Place({}, {}, (), buffers, frozenset())
    work = [_work(statement, where, target) for statement, where in _leaves(nest.body, place)]
    scalar = sum(item.scalar for item in work)
    if scalar < LEAST_WORK or scalar <= MOST * (scalar + sum(item.vector for item in work)):
        return ""
    return max(work, key=lambda item: item.scalar).reason


def _leaves(body: Body, place: _Place) -> Iterator[tuple[Store | Update | Dot, _Place]]:
    for statement in body:
        match statement:
            case Store() | Update() | Dot():
                yield statement, place
            case For():
                yield from _leaves(statement.body, _inside(statement, place))
            case Let(variable=variable, value=value):
                ranges = {**place.ranges, variable: expr_range(value, place.ranges)}
                instance = {**place.instance, variable: expr_range(value, place.instance)}
                inner = replace(place, ranges=ranges, instance=instance)
                if loads(value):
                    inner = replace(inner, read=place.read | {variable})
                yield from _leaves(statement.body, inner)
            case If(condition=condition):
                if statement.elsewhere or decide(condition, place.ranges) is not False:
                    yield from _leaves(statement.body, place)
            case Allocate(memory=memory, scope=scope):
                buffers = {**place.buffers, memory.name: memory}
                inside = replace(place, buffers=buffers)
                if scope is not Scope.WORKSPACE:
                    inside = replace(inside, local=place.local | {memory.name})
                yield from _leaves(statement.body, inside)


def _inside(loop: For, place: _Place) -> _Place:
    bounds = (loop.start, loop.stop - 1)
    one = (loop.start, loop.start) if loop.kind is LoopKind.UNROLLED else bounds
    ranges = {**place.ranges, loop.variable: bounds}
    instance = {**place.instance, loop.variable: one}
    if loop.kind is LoopKind.VECTORISED:
        return replace(place, ranges=ranges, instance=instance, lane=loop)
    times = place.times * (loop.stop - loop.start)
    loops = (*place.loops, loop)
    return replace(place, ranges=ranges, instance=instance, loops=loops, times=times)


def _work(statement: Store | Update | Dot, place: _Place, target: Target) -> _Work:
    if isinstance(statement, Dot):
        return _work_of_dot(statement, place, target)
    nodes = list(postorder(statement.value, _operands))
    if place.lane is None and any(axes_of(item) & place.read for item in statement.indices):
        return _Work(0.0, 0.0)
    if place.lane is None:
        instructions = 1.0 + sum(map(_cost, nodes))
        return _Work(0.0, place.times * instructions, _why_scalar(statement, place, target))
    width = place.lane.stop - place.lane.start
    vectors = math.ceil(width / target.lanes(DType.F32))
    vector, scalar, reasons = float(vectors), 0.0, []
    problem = _store_problem(statement, place)
    if problem:
        scalar += width
        reasons.append((float(width), problem))
    depending: set[int] = set()
    for node in nodes:
        if not _depends_on_lane(node, place.lane.variable, depending):
            vector += 1.0
            continue
        depending.add(id(node))
        problem = _node_problem(node, place, target)
        vector += 0.0 if problem else vectors
        if problem:
            cost = width * _cost(node)
            scalar += cost
            reasons.append((cost, problem))
    reason = max(reasons)[1] if reasons else ""
    return _Work(place.times * vector, place.times * scalar, reason)


def _work_of_dot(statement: Dot, place: _Place, target: Target) -> _Work:
    """An instruction for the products and one for each factor; without lanes, each for a term."""
    if place.lane is None:
        reason = f"no sketch makes vectors of the elements of `{statement.buffer}`"
        return _Work(0.0, 4.0 * place.times * statement.count, reason)
    width = place.lane.stop - place.lane.start
    return _Work(3.0 * place.times * math.ceil(width / target.lanes(DType.F32)), 0.0)


def _depends_on_lane(node: Expr, variable: str, depending: set[int]) -> bool:
    """Whether a node, whose operands were asked before, has another value for each lane."""
    if isinstance(node, Load):
        return any(variable in axes_of(item) for item in node.indices)
    if isinstance(node, Index):
        return node.name == variable
    return any(id(operand) in depending for operand in children(node))


def _operands(expr: Expr) -> tuple[Expr, ...]:
    """Operands but for the indices of loads: addresses are no work on values."""
    return () if isinstance(expr, Load) else children(expr)


def _cost(node: Expr) -> float:
    """Instructions of one element."""
    if calls_library(node):
        return LIBRARY_CALL
    if isinstance(node, Load):
        indices = [part for item in node.indices for part in postorder(item)]
        return 1.0 + DIVISION * sum(map(_is_division, indices))
    return DIVISION if _is_division(node) else 1.0


def _is_division(node: Expr) -> bool:
    return (
        isinstance(node, Binary)
        and node.op in ("floordiv", "mod", "div")
        and not node.left.dtype.is_float
    )


# Why ---------------------------------------------------------------------------------------------


def _node_problem(node: Expr, place: _Place, target: Target) -> str:
    """Why a node is evaluated lane by lane; empty if it is not."""
    if calls_library(node):
        assert isinstance(node, Unary | Binary)
        return f"`{node.op}` is a call of the C library for each element"
    if isinstance(node, Load):
        assert place.lane is not None
        return _load_problem(node, place.lane.variable, place, target)
    return ""


def _load_problem(node: Load, variable: str, place: _Place, target: Target) -> str:
    """Why elements along a variable are not read as vectors; empty if they are."""
    form = _address(node, place.buffers, place.instance)
    stride = form.coefficient(variable)
    loose = [atom for atom, _ in form.terms if _depends(atom, variable)]
    if not loose and stride in (0, 1):
        return ""
    if not loose and node.buffer in place.local and form.terms == ((variable, stride),):
        return ""  # a column of vectors that are there
    if _has_pattern(node, variable, place):
        return ""
    if not loose:
        return f"elements of `{node.buffer}` lie {abs(stride)} apart along the axis of the vectors"
    if target.has_gather and node.dtype.bytes in GATHERED_BYTES:
        return ""
    return _atom_problem(node.buffer, loose[0])


def _has_pattern(node: Load, variable: str, place: _Place) -> bool:
    """Whether distances depend on the lane alone, so that a few vectors have all elements."""
    start, last = place.instance[variable]
    forms = [
        _address(node, place.buffers, {**place.instance, variable: (at, at)})
        for at in range(start, min(last, start + MOST_LANES - 1) + 1)
    ]
    if len(forms) < 2 or any(form.terms != forms[0].terms for form in forms):
        return False
    if any(_depends(atom, variable) for atom, _ in forms[0].terms):
        return False
    return pieces_of([form.constant for form in forms]) is not None


def _atom_problem(buffer: str, atom: Atom) -> str:
    assert not isinstance(atom, str)
    inner = loads(atom)
    if inner:
        return f"where `{buffer}` is read depends on the values of `{inner[0].buffer}`"
    if any(_is_division(part) for part in postorder(atom)):
        return f"integer division or modulo in an index of `{buffer}`"
    return f"an index of `{buffer}` is no sum of multiples of positions"


def _store_problem(statement: Store | Update, place: _Place) -> str:
    assert place.lane is not None
    form, variable = (
        _address(statement, place.buffers, place.instance),
        place.lane.variable,
    )
    if form.coefficient(variable) == 1 and not any(_depends(a, variable) for a, _ in form.terms):
        return ""
    return f"neighbouring lanes are no neighbours in the result `{statement.buffer}`"


def _depends(atom: Atom, variable: str) -> bool:
    return not isinstance(atom, str) and variable in axes_of(atom)


def _address(
    access: Load | Store | Update, buffers: Mapping[str, Memory], ranges: _Ranges
) -> Affine:
    result, stride = Affine(0, ()), 1
    shape = buffers[access.buffer].shape
    for extent, item in zip(reversed(shape), reversed(access.indices), strict=True):
        result = result.plus(affine(item, ranges), stride)
        stride *= extent
    return result


def _why_scalar(statement: Store | Update, place: _Place, target: Target) -> str:
    """Why no loop round a statement is vectorised, as far as its accesses tell.

    Candidates are the loops along which results lie side by side, or else those that reduce.
    """
    form = _address(statement, place.buffers, place.instance)
    lanes = target.lanes(DType.F32)
    axes = {atom for atom, _ in form.terms if isinstance(atom, str)}
    along = [loop for loop in place.loops if form.coefficient(loop.variable) == 1] or [
        loop for loop in place.loops if loop.variable not in axes
    ]
    loop = max(along, key=lambda item: item.stop - item.start, default=None)
    if loop is None or loop.stop - loop.start < lanes // 2:
        return f"no axis of {lanes // 2} or more elements is contiguous in `{statement.buffer}`"
    for node in postorder(statement.value, _operands):
        if calls_library(node):
            return _node_problem(node, place, target)
        problem = (
            _load_problem(node, loop.variable, place, target) if isinstance(node, Load) else ""
        )
        if problem:
            return problem
    return f"no sketch makes vectors of the elements of `{statement.buffer}`"


# --- calls of the C library: once for each element, vectors or not -------------------------------


def calls_library(node: Expr) -> bool:
    """Whether the code of a node, its operands left aside, calls the C library."""
    match node:
        case Unary(op=op, operand=operand):
            return _calls(op, operand.dtype, (_literal(operand),))
        case Binary(op=op, left=left, right=right):
            return _calls(op, left.dtype, (_literal(left), _literal(right)))
        case _:
            return False


def _literal(operand: Expr) -> float | None:
    """Its value, if it has one: of a power of 2 there is nothing to call."""
    return float(operand.value) if isinstance(operand, Const) else None


@cache
def _calls(op: str, dtype: DType, literals: tuple[float | None, ...]) -> bool:
    function = (UNARY if len(literals) == 1 else BINARY)[op]
    writer = _Notes()
    vectors = Instructions(writer, dtype, 4)
    operands = ["%operand" if value is None else vectors.constant(value) for value in literals]
    function.emit(vectors, *operands)
    return writer.called


class _Notes:
    """Takes what a function emits, and notes whether a library function is called."""

    has_fma = True
    has_avx512 = False
    converted = frozenset[DType]()
    fixed_rounding = False

    def __init__(self) -> None:
        self.called = False

    def emit(self, operation: str) -> str:
        return "%value"

    def intrinsic(self, name: str, result: str, arguments: list[str], flags: str = "") -> str:
        self.called |= not name.startswith("llvm.")
        return "%value"

    def rarely(self, condition: str, usual: str, rare: Callable[[], str], type: str) -> str:
        """What is emitted for rare values costs nothing."""
        return usual
