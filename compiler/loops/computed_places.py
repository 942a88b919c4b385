"""Places that are read from memory: who writes there, and that nobody else does so meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tunefarm.compiler.expr.nodes import Const, Expr, Load
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.loops.ir import For, LoopKind, Store, Update


class ComputedPlaces:
    """Follows a nest, and knows which variables were read from memory and which loops surround.

    What is read at a constant position of an input is the same for all rounds of all loops.
    """

    def __init__(self, inputs: Collection[str] = ()) -> None:
        self._inputs = frozenset(inputs)
        self._loops: list[For] = []
        self._read: set[str] = set()  # variables whose values are read from memory
        self._sources: dict[str, set[str]] = {}  # of a bound variable: those that it depends on
        self._depths: dict[str, int] = {}  # loops round an allocated buffer

    @contextmanager
    def inside(self, loop: For) -> Iterator[None]:
        """What is asked meanwhile stands in the loop."""
        self._loops.append(loop)
        yield
        self._loops.pop()

    def bind(self, variable: str, value: Expr) -> None:
        """A variable is given a value."""
        self._sources[variable] = self._variables(value)
        (self._read.add if self.is_computed(value) else self._read.discard)(variable)

    def allocate(self, buffer: str) -> None:
        """A buffer begins to exist: loops that surround it have one each."""
        self._depths[buffer] = len(self._loops)

    def is_computed(self, item: Expr) -> bool:
        """The index is read from memory, or computed from what is."""
        read = any(not self._is_constant(load) for load in loads(item))
        return read or not self._read.isdisjoint(axes_of(item))

    def _is_constant(self, load: Load) -> bool:
        plain = all(isinstance(item, Const) for item in load.indices)
        return plain and load.buffer in self._inputs

    def problem(self, statement: Store | Update) -> str:
        """Why threads or lanes may write to one place; "" if they do not."""
        computed = [item for item in statement.indices if self.is_computed(item)]
        if not computed:
            return ""
        plain = [item for item in statement.indices if not self.is_computed(item)]
        for loop in self._loops[self._depths.get(statement.buffer, 0) :]:
            if loop.kind not in (LoopKind.PARALLEL, LoopKind.VECTORISED):
                continue
            own = any(loop.variable in self._variables(item) for item in plain)
            mixed = any(loop.variable in self._variables(item) for item in computed)
            if not own or (mixed and loop.kind is LoopKind.VECTORISED):
                return (
                    f"rounds of the {loop.kind} loop {loop.variable} may write to one place of "
                    f"{statement.buffer}, which is read from memory"
                )
        return ""

    def _variables(self, item: Expr) -> set[str]:
        """The variables that an expression depends on, also by way of others."""
        found = axes_of(item)
        for name in tuple(found):
            found |= self._sources.get(name, set())
        return found
