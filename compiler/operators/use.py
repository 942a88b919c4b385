"""What an operator's rules are given: its attributes, and its place in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.kernels.kernel import KernelBuilder, Tensor
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

PointBody: TypeAlias = Callable[[tuple[Expr, ...]], Expr]


class Attributes(dict[str, Attribute]):
    """All attributes of a node; the typed readers raise `ShapeError` for another kind of value."""

    def integer(self, name: str) -> int:
        """An integer."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _mistyped(name, "an integer", value)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A tuple of integers."""
        value = self[name]
        if not isinstance(value, tuple):
            raise _mistyped(name, "a tuple of integers", value)
        integers = tuple(item for item in value if isinstance(item, int))
        if len(integers) != len(value):
            raise _mistyped(name, "a tuple of integers", value)
        return integers

    def floating(self, name: str) -> float:
        """A number as a float."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _mistyped(name, "a number", value)
        return float(value)

    def number(self, name: str) -> int | float:
        """A bool, integer or float as it is."""
        value = self[name]
        if not isinstance(value, (int, float)):
            raise _mistyped(name, "a number", value)
        return value

    def flag(self, name: str) -> bool:
        """True or false, or ONNX's 1 and 0."""
        value = self[name]
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise _mistyped(name, "true or false", value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of a few words."""
        value = self[name]
        if not isinstance(value, str) or value not in choices:
            raise _mistyped(name, f"one of {', '.join(choices)}", value)
        return value

    def text(self, name: str) -> str:
        """A text."""
        value = self[name]
        if not isinstance(value, str):
            raise _mistyped(name, "a text", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A tuple of strings."""
        value = self[name]
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise _mistyped(name, "a tuple of strings", value)
        return tuple(str(item) for item in value)

    def axis(self, name: str, rank: int) -> int:
        """An axis of a tensor of this rank, 0 <= axis < rank."""
        axis = self.integer(name)
        if not 0 <= axis < rank:
            raise ShapeError(f"{name} {axis} is not an axis of a tensor of rank {rank}")
        return axis


def _mistyped(name: str, wanted: str, value: Attribute) -> ShapeError:
    return ShapeError(f"attribute {name} must be {wanted}, not {value!r}")


@frozen
class Use:
    """A use of an operator in a kernel: the builder, the operands and the type of the result."""

    builder: KernelBuilder
    inputs: tuple[Tensor | None, ...]
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return self.type.dtype

    def input(self, position: int) -> Tensor:
        """An operand that the arity check has found present."""
        tensor = self.inputs[position]
        if tensor is None:
            raise ValueError(f"input {position} is absent")
        return tensor

    def optional(self, position: int) -> Tensor | None:
        """An operand, or None when it is absent or not even listed."""
        return self.inputs[position] if position < len(self.inputs) else None

    def pointwise(self, hint: str, body: PointBody) -> Tensor:
        """Add a stage in the result's shape whose body gets the tuple of its indices."""
        return self.builder.stage(hint, axes_of(self.shape), lambda *indices: body(indices))


def axes_of(shape: Sequence[int], prefix: str = "i") -> list[tuple[str, int]]:
    """Axes i0, i1, … over a shape."""
    return [(f"{prefix}{position}", extent) for position, extent in enumerate(shape)]
