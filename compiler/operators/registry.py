"""The operators of the graph: type rule, tensor expression, and what passes ask of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, StrEnum
from typing import Final, ParamSpec, TypeAlias

from tunefarm.compiler.errors import ShapeError, UnsupportedOperatorError
from tunefarm.compiler.expr.nodes import stored_as
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.operators.blocked import BlockedRule
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use, axes_of
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

MAXIMUM_BYTES = 2**40

TypeRule: TypeAlias = Callable[[Attributes, Types], TensorType]
ExpressionRule: TypeAlias = Callable[[Attributes, Use], Tensor]
PassRule: TypeAlias = Callable[[Attributes], "int | None"]
PositionRule: TypeAlias = Callable[[Attributes], "Positions"]
TransposeRule: TypeAlias = Callable[[Attributes, TensorType], "Transpose"]
WorkRule: TypeAlias = Callable[[Attributes, Types, TensorType], int]
Axes: TypeAlias = "tuple[int | None, ...]"
AlongRule: TypeAlias = Callable[[Attributes, Types, int], "Axes | None"]


class Pattern(StrEnum):
    """How an operator may be fused."""

    ELEMENTWISE = "elementwise"  # one output element from the inputs' elements at that position
    INJECTIVE = "injective"  # each output element is one input element (or a constant)
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    OPAQUE = "opaque"  # several stages; what is pointwise after it joins its kernel
    VIEW = "view"  # the same memory, or a part of it, under another shape: no code
    JOIN = "join"  # the operands one behind the other, where they were written: no code
    FUNCTION = "function"  # a call of code that is not ours
    LOOP = "loop"  # where a loop begins and ends: no code of its own


MEMORY = (Pattern.VIEW, Pattern.JOIN)
"""Patterns of operators that say where values lie, and compute nothing."""

UNEXPRESSED = (*MEMORY, Pattern.FUNCTION, Pattern.LOOP)
"""Patterns of operators without a tensor expression."""


class Positions(StrEnum):
    """Where an injective operator's elements are read."""

    PLAIN = "plain"  # sums of indices and their multiples
    DIVIDED = "divided"  # divided, mirrored or clamped: known of a vector's lanes when compiling
    LOOKED_UP = "looked up"  # in a table, or several of them: worth doing once per element


@frozen
class Transpose:
    """Data viewed in another shape, the order that its axes are put in, and the result's shape.

    `near` says that neighbours of the result lie near enough to be read by what shares its kernel.
    """

    shape: tuple[int, ...]
    perm: tuple[int, ...]
    result: tuple[int, ...]
    near: bool = True


class Required(Enum):
    """The type of `REQUIRED`, which stands where an attribute has no default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@frozen
class OperatorDefinition:
    """What the compiler knows of one operator: no pass asks for an operator's name instead.

    `inputs` is their number, or its minimum and maximum (None: any number), and
    `attributes` names every attribute with its default. `infer` gives the result's type, of static
    and of dynamic sizes (`tunefarm.compiler.operators.types`), or raises `ShapeError`; `expression`
    adds the operator's stages to a kernel and returns the result (None for views, joins, functions
    and loops). Both receive complete attributes, and None for an absent optional input.
    """

    name: str
    pattern: Pattern
    inputs: int | tuple[int, int | None]
    infer: TypeRule
    expression: ExpressionRule | None
    attributes: Mapping[str, Attribute | Required] = field(default_factory=dict)
    cheap: bool = False
    """An element is worth computing again rather than storing: a few simple instructions."""
    commutes: bool = False
    """The two operands may change places."""
    neutral: float | None = None
    """The right operand (or the left one, if they commute) that leaves the other as it is."""
    identity_if_same_type: bool = False
    """It does nothing exactly where the result has the type of the operand."""
    folds_axes: bool = False
    """Elements along the attribute `axes` become one, and a single one is itself; `keepdims`."""
    reads_rows: bool = False
    """It reads rows along the attribute `axis` whole."""
    folds_late: bool = False
    """Of constants, too, it stays until passes have read what it says of them."""
    along: AlongRule | None = None
    """What `axes_along` says of an axis of the result; None: nothing but of pointwise operators."""
    diagonal: str = ""
    """The flag with which its last operand are bounds of what row 0 reads, 1 more for each row."""
    passes: int | PassRule | None = None
    """How often it reads each element of its data; None: as often as the shapes say."""
    positions: Positions | PositionRule = Positions.PLAIN
    """Where it reads its data."""
    looked_up: int | None = None
    """The operand of a pointwise operator that its elements are looked up in: no layout's part."""
    turns: Callable[[Attributes], bool] | None = None
    """Whether elements that lie side by side are read far apart; None: they are not."""
    alone: bool = False
    """No other node shares its kernel."""
    lazy: bool = False
    """The first operand, a bool, says which one of the other two is needed: the second if true."""
    ends_in_cast: bool = False
    """Of what lies behind it only a cast shares its kernel, whose schedules know no other end."""
    piecewise: bool = False
    """Which operand an element is of follows from its position."""
    moves: bool | Callable[[Attributes], bool] | None = None
    """Each element of its result is one of its operands' or a constant, whatever their type; None:
    where its pattern says so."""
    transpose: TransposeRule | None = None
    """A move whose data can be split into more axes and turned, as its attribute `split` says."""
    reads_result: bool = False
    """Its kernel reads back what it wrote, so that nothing behind it is fused with it."""
    work: WorkRule | None = None
    """The multiplications of a contraction."""
    factors: int = 2
    """How many of the first operands a contraction multiplies."""
    fits_tiles: Callable[[Attributes, Types], bool] | None = None
    """Whether matrix tiles hold a contraction that has no other use for narrow factors; None: it
    has, on any target with instructions that sum their products."""
    outside: Callable[[Attributes, DType], float] | None = None
    """What windows with `pads` read outside of the data, for elements of this type."""
    stored: bool = False
    """Its expression reads and gives elements as they are stored: it converts, or only moves them.

    Others get 16-bit floats as f32, and their results are rounded."""
    blocked: BlockedRule | None = None
    """How it runs on blocked data (pointwise operators all do so alike)."""
    dynamic: bool = False
    """Its `infer` knows axes of which only a part is there: others are refused on them."""

    @property
    def arity(self) -> tuple[int, int | None]:
        """The minimum and maximum number of inputs; None: any number."""
        return self.inputs if isinstance(self.inputs, tuple) else (self.inputs, self.inputs)


_Fields = ParamSpec("_Fields")
_OPERATORS: dict[str, OperatorDefinition] = {}


def register(*definitions: OperatorDefinition) -> None:
    """Add operators; `ValueError` for a name that is taken, or an expression in the wrong place."""
    for definition in definitions:
        name = definition.name
        if name in _OPERATORS:
            raise ValueError(f"operator {name} is registered twice")
        if (definition.expression is None) != (definition.pattern in UNEXPRESSED):
            raise ValueError(
                f"operator {name}: exactly views, joins, functions and loops have no expression"
            )
        _OPERATORS[name] = definition


def _registered(make: Callable[_Fields, OperatorDefinition]) -> Callable[_Fields, None]:
    def define(*args: _Fields.args, **kwargs: _Fields.kwargs) -> None:
        register(make(*args, **kwargs))

    return define


define = _registered(OperatorDefinition)
"""Register one operator by the fields of its definition."""


def operator(name: str) -> OperatorDefinition:
    """The definition of an operator; `UnsupportedOperatorError` names the nearest known one."""
    found = _OPERATORS.get(name)
    if found is not None:
        return found
    nearest = difflib.get_close_matches(name, _OPERATORS, n=1)
    hint = f"the nearest known operator is {nearest[0]}" if nearest else ""
    raise UnsupportedOperatorError(f"there is no operator {name!r}", hint=hint)


def all_operators() -> tuple[OperatorDefinition, ...]:
    """Every registered operator, sorted by name."""
    return tuple(_OPERATORS[name] for name in sorted(_OPERATORS))


def complete_attributes(node: Node) -> Attributes:
    """The node's attributes with defaults filled in.

    Raises `ShapeError` for an attribute that the operator does not have or that it needs.
    """
    defaults = operator(node.operator).attributes
    for name in node.attributes:
        if name not in defaults:
            nearest = difflib.get_close_matches(name, defaults, n=1)
            hint = f"the nearest is {nearest[0]}" if nearest else ""
            raise ShapeError(f"{_where(node)} has no attribute {name!r}", hint=hint)
    complete = Attributes()
    for name, default in defaults.items():
        if name in node.attributes:
            complete[name] = node.attributes[name]
        elif isinstance(default, Required):
            raise ShapeError(f"{_where(node)} needs the attribute {name!r}")
        else:
            complete[name] = default
    return complete


def infer_type(node: Node, types: Sequence[TensorType | None]) -> TensorType:
    """The type of the node's output as it is stored, whatever is there of its operands.

    `types` has one entry per input, None where it is absent. Raises `UnsupportedOperatorError` or
    `ShapeError`, naming the node, the reason and the types.
    """
    definition = operator(node.operator)
    attributes = complete_attributes(node)
    _check_arity(node, definition, types)
    for position, type in enumerate(types):
        if type is not None:
            _check_extents(node, f"input {position}", type)
    stored = Types(None if type is None else type.stored for type in types)
    try:
        result = definition.infer(attributes, stored)
    except ShapeError as error:
        given = ", ".join("absent" if type is None else str(type) for type in types)
        raise ShapeError(f"{_where(node)}({given}): {error.message}", hint=error.hint) from None
    _check_extents(node, "the result", result)
    windows = definition.pattern in (Pattern.REDUCTION, Pattern.CONTRACTION)
    if windows and not result.size and all(type is None or type.size for type in types):
        raise ShapeError(f"{_where(node)}: no element of {result} has anything to be made of")
    return result


def add_expression(
    builder: KernelBuilder, node: Node, inputs: Sequence[Tensor | None], type: TensorType
) -> Tensor:
    """Add the node's stages to `builder` and return its result; `type` is the inferred type.

    Raises `ValueError` for a view, join or function, which has no expression.
    """
    definition = operator(node.operator)
    if definition.expression is None:
        raise ValueError(f"{node.operator} is a {definition.pattern} and has no expression")
    attributes = complete_attributes(node)
    if definition.stored:
        return definition.expression(attributes, Use(builder, tuple(inputs), type))
    operands = tuple(None if tensor is None else _computed_with(tensor) for tensor in inputs)
    wide = replace(type, dtype=type.dtype.wide)
    result = definition.expression(attributes, Use(builder, operands, wide))
    return result if wide == type else _rounded(builder, result, type.dtype)


def _computed_with(tensor: Tensor) -> Tensor:
    """An operand as expressions compute with it.

    What another operator of the kernel made is taken as it was before it was rounded.
    """
    return tensor.widened() if tensor.exact is None else tensor.exact


def _rounded(builder: KernelBuilder, exact: Tensor, dtype: DType) -> Tensor:
    """A result as it is stored: the stage "rounded"."""
    axes = axes_of(exact.shape)
    result = builder.stage("rounded", axes, lambda *indices: stored_as(dtype, exact[indices]))
    return replace(result, exact=exact)


def is_pointwise(name: str) -> bool:
    """Whether each element of an operator's result is made of one element of each operand."""
    definition = operator(name)
    return definition.pattern is Pattern.ELEMENTWISE and definition.looked_up is None


def broadcast_along(types: Types, axis: int) -> Axes:
    """`axes_along` of operands that are broadcast to a result."""
    shapes = [() if type is None else type.shape for type in types]
    rank = max(map(len, shapes))
    extent = max(shape[axis - rank] for shape in shapes if len(shape) >= rank - axis)
    return tuple(
        axis - rank + len(shape)
        if len(shape) >= rank - axis and shape[axis - rank] == extent
        else None
        for shape in shapes
    )


def axes_along(node: Node, types: Sequence[TensorType | None], axis: int) -> Axes | None:
    """For an axis of the node's result the axis of each operand that is read at the same place
    only, None for an operand that is read whole. None: places may depend on each other.

    A row of a matrix product needs that row of the left operand and the right one whole.
    """
    definition, operands = operator(node.operator), Types(types)
    if definition.along is not None:
        return definition.along(complete_attributes(node), operands, axis)
    if not is_pointwise(node.operator) or "axis" in definition.attributes:
        return None
    return broadcast_along(operands, axis)


def passes_over_data(node: Node) -> int | None:
    """How often the node reads each element of its data; None: as often as the shapes say."""
    passes = operator(node.operator).passes
    return passes(complete_attributes(node)) if callable(passes) else passes


def positions_of(node: Node) -> Positions:
    """Where the node reads its data."""
    rule = operator(node.operator).positions
    return rule if isinstance(rule, Positions) else rule(complete_attributes(node))


def turns(node: Node) -> bool:
    """Whether the node reads far apart what it writes side by side."""
    rule = operator(node.operator).turns
    return rule is not None and rule(complete_attributes(node))


def moves(node: Node) -> bool:
    """Whether the node computes no element of its result."""
    rule, pattern = operator(node.operator).moves, operator(node.operator).pattern
    if rule is None:
        return pattern is Pattern.INJECTIVE or pattern in MEMORY
    return rule(complete_attributes(node)) if callable(rule) else rule


def transpose_of(
    operator_name: str, attributes: Mapping[str, Attribute], data: TensorType
) -> Transpose:
    """How an operator transposes its data; raises `ShapeError` where it does not fit the data.

    `ValueError` for an operator that transposes nothing.
    """
    rule = operator(operator_name).transpose
    if rule is None:
        raise ValueError(f"{operator_name} transposes nothing")
    node = Node(operator_name, ("",), "", attributes)
    return rule(complete_attributes(node), data)


def multiplications(node: Node, types: Mapping[str, TensorType]) -> int:
    """The multiplications of a contraction, 0 for other operators; `types` are by value."""
    work = operator(node.operator).work
    if work is None:
        return 0
    operands = Types(types[name] if name else None for name in node.inputs)
    return work(complete_attributes(node), operands, types[node.output])


def _where(node: Node) -> str:
    return f"{node.operator} (node {node.source})" if node.source else node.operator


def _check_arity(
    node: Node, definition: OperatorDefinition, types: Sequence[TensorType | None]
) -> None:
    minimum, maximum = definition.arity
    if len(types) != len(node.inputs):
        raise ValueError(f"{_where(node)}: {len(types)} types for {len(node.inputs)} inputs")
    if len(types) < minimum or (maximum is not None and len(types) > maximum):
        wanted = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum or 'any number'}"
        raise ShapeError(f"{_where(node)} takes {wanted} inputs, not {len(types)}")
    needed = len(types) if maximum is None else minimum
    for position in range(needed):
        if types[position] is None:
            raise ShapeError(f"{_where(node)}: input {position} is required but absent")


def _check_extents(node: Node, what: str, type: TensorType) -> None:
    if min(type.shape, default=0) < 0:
        raise ShapeError(f"{_where(node)}: {what} has the type {type}")
    if type.bytes >= MAXIMUM_BYTES:
        raise ShapeError(f"{_where(node)}: {what} would take {type.bytes} bytes ({type})")
