"""FunctionWriter: LLVM IR text in nested bodies; addresses are computed as far out as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.types.dtypes import DType

_SELDOM = '!0 = !{!"branch_weights", i32 1, i32 1048575}'


class Value(NamedTuple):
    """An SSA value or literal; `width` 0 is a scalar. `scalar` is what a splat was made of."""

    text: str
    dtype: DType
    width: int

    @property
    def type(self) -> str:
        """LLVM's name of the type."""
        return type_of(self.dtype, self.width)

    @property
    def typed(self) -> str:
        """The value with its type, as operands are written."""
        return f"{self.type} {self.text}"


@dataclass(slots=True)
class Body:
    """Code of a function, loop or branch with its variables; `header` is loop-invariant code."""

    header: list[object] = field(default_factory=list)
    cache: dict[object, str] = field(default_factory=dict)
    values: dict[object, Value] = field(default_factory=dict)


class FunctionWriter:
    """Collects one function's text.

    Lines are appended at the current point, or to the header of an enclosing body. Headers
    precede all other code of their body and may only use what outer bodies and earlier header
    lines define.
    """

    def __init__(
        self,
        declarations: set[str],
        has_fma: bool = False,
        has_avx512: bool = False,
        converted: frozenset[DType] = frozenset(),
        fixed_rounding: bool = False,
        has_avx2: bool = False,
    ) -> None:
        self.declarations = declarations
        self.has_fma = has_fma
        self.has_avx2 = has_avx2
        self.has_avx512 = has_avx512
        self.converted = converted
        self.fixed_rounding = fixed_rounding
        self.entry: list[object] = []
        self._out: list[object] = []
        self._next = 0
        self.block = "entry"
        self.bodies: list[Body] = [Body()]
        self._out.append(self.entry)
        self._out.append(self.bodies[0].header)
        self.depths: dict[str, int] = {}  # loop variable -> index of its body
        self._declared: set[str] = set()

    def text(self) -> str:
        """What was written so far."""
        return "\n".join(_flatten(self._out))

    def fresh(self, hint: str = "v") -> str:
        """A new name of a value."""
        self._next += 1
        return f"%{hint}{self._next}"

    def line(self, text: str) -> None:
        """Write a line."""
        self._out.append(text)

    def emit(self, operation: str) -> str:
        """Append `%fresh = operation` and return the name."""
        self._next += 1
        name = f"%v{self._next}"
        self._out.append(f"{name} = {operation}")
        return name

    def emit_in(self, depth: int, operation: str) -> str:
        """Append an operation to the header of body `depth`."""
        self._next += 1
        name = f"%h{self._next}"
        self.bodies[depth].header.append(f"{name} = {operation}")
        return name

    def emit_entry(self, operation: str) -> str:
        """Append an operation to the entry block: allocations."""
        self._next += 1
        name = f"%a{self._next}"
        self.entry.append(f"{name} = {operation}")
        return name

    def placeholder(self) -> list[object]:
        """A place in the text that is filled in later."""
        lines: list[object] = []
        self._out.append(lines)
        return lines

    def begin_block(self, label: str) -> None:
        """Start a basic block."""
        self._out.append(f"{label}:")
        self.block = label

    def label(self, hint: str) -> str:
        """A new name of a block."""
        self._next += 1
        return f"{hint}{self._next}"

    @contextmanager
    def body(self, *variables: str) -> Iterator[None]:
        """A new body from here on; `variables` are defined just before it."""
        inner = Body()
        self._out.append(inner.header)
        self.bodies.append(inner)
        for variable in variables:
            self.depths[variable] = len(self.bodies) - 1
        try:
            yield
        finally:
            self.bodies.pop()
            for variable in variables:
                del self.depths[variable]

    def lookup(self, key: object) -> str | None:
        """A cached name that dominates this point."""
        for body in reversed(self.bodies):
            name = body.cache.get(key)
            if name is not None:
                return name
        return None

    def lookup_value(self, key: object) -> Value | None:
        """A cached value that dominates this point."""
        for body in reversed(self.bodies):
            value = body.values.get(key)
            if value is not None:
                return value
        return None

    def intrinsic(self, name: str, result: str, arguments: list[str], flags: str = "") -> str:
        """Call an intrinsic or library function; `arguments` are typed operands."""
        self._declare(name, result, arguments)
        return self.emit(f"call {flags}{result} @{name}({', '.join(arguments)})")

    def rarely(self, condition: str, usual: str, rare: Callable[[], str], type: str) -> str:
        """`usual`, or what `rare` emits, in a branch of its own, where the condition holds."""
        before, branch, done = self.block, self.label("rare"), self.label("usual")
        self.declarations.add(_SELDOM)
        self.line(f"br i1 {condition}, label %{branch}, label %{done}, !prof !0")
        self.begin_block(branch)
        value = rare()
        after = self.block
        self.line(f"br label %{done}")
        self.begin_block(done)
        return self.emit(f"phi {type} [ {usual}, %{before} ], [ {value}, %{after} ]")

    def call(self, name: str, arguments: list[str]) -> None:
        """Call an intrinsic without a result."""
        self._declare(name, "void", arguments)
        self.line(f"call void @{name}({', '.join(arguments)})")

    def _declare(self, name: str, result: str, arguments: list[str]) -> None:
        """Declare a function, once: a name has one type, and LLVM refuses another use of it."""
        if name not in self._declared:
            self._declared.add(name)
            types = ", ".join(_type_part(argument) for argument in arguments)
            self.declarations.add(f"declare {result} @{name}({types})")


def _type_part(argument: str) -> str:
    if argument.startswith("<"):
        return argument[: argument.index(">") + 1]
    return argument.split(" ", 1)[0]


def _flatten(lines: list[object]) -> Iterator[str]:
    for item in lines:
        if isinstance(item, list):
            yield from _flatten(item)
        else:
            assert isinstance(item, str)
            yield item
