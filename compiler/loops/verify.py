"""The rules of loop nests: every name is defined once where it is used, every index is in range."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.affine import Ranges, affine, affine_range, expr_range
from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.nodes import Const, Expr, Load, Select
from tunefarm.compiler.expr.packed_fields import is_unpacked
from tunefarm.compiler.expr.verify import node_problem
from tunefarm.compiler.expr.walk import axes_of, children, loads
from tunefarm.compiler.loops.ir import (
    Allocate,
    Carry,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStmt,
    TileStore,
    TileZero,
    Update,
)
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify_tiles import rows_problem, tile_memory_problem, tile_problem
from tunefarm.compiler.types.dtypes import DType


def verify_loops(nest: LoopNest) -> None:
    """Raise `VerifyError`, with the printed nest, if a rule is broken.

    Variables are bound once on each path; loops are not empty; a vectorised loop holds no loop but
    unrolled ones and allocates nothing; a parallel loop is outermost or inside of serial ones, and
    outside of all memory that one thread has for itself; workspace is allocated in serial loops at
    most; types agree; the factors of a dot product are narrower than their sum, and no
    more than loads; of matrix tiles no more are live than exist, those of a statement fit each
    other, and which they are is known when code is made; indices are provably in range, except
    under a guard, whose meaning is not analysed. Where an index of what is written is read from
    memory, another one says which thread or lane writes there.
    """
    problem = _Verifier(nest).body(nest.body, {}, guarded=False, loops=())
    if problem:
        raise VerifyError(f"loops of {nest.name}: {problem}", program=format_loops(nest))


class _Verifier:
    def __init__(self, nest: LoopNest) -> None:
        self.read_only = {memory.name for memory in nest.inputs}
        self.memories: dict[str, Memory] = {memory.name: memory for memory in nest.inputs}
        self.memories[nest.output.name] = nest.output
        self.places = ComputedPlaces(self.read_only)
        self.tiles: dict[str, Memory] = {}
        self.unrolled: list[str] = []  # variables that are known where code is made
        self.private: list[str] = []  # memory of one thread

    def body(
        self, body: tuple[Stmt, ...], ranges: Ranges, *, guarded: bool, loops: tuple[LoopKind, ...]
    ) -> str:
        """The first problem of a body, or ""."""
        for statement in body:
            problem = self._statement(statement, ranges, guarded, loops)
            if problem:
                return problem
        return ""

    def _statement(
        self, statement: Stmt, ranges: Ranges, guarded: bool, loops: tuple[LoopKind, ...]
    ) -> str:
        match statement:
            case For():
                return self._for(statement, ranges, guarded, loops)
            case Let(variable=variable, value=value, body=inner):
                if variable in ranges:
                    return f"{variable} is bound twice"
                problem = self._value(value, ranges, guarded)
                bound = {**ranges, variable: expr_range(value, ranges)}
                self.places.bind(variable, value)
                return problem or self.body(inner, bound, guarded=guarded, loops=loops)
            case If(condition=condition, body=inner):
                problem = self._value(condition, ranges, guarded)
                if condition.dtype is not DType.BOOL:
                    problem = problem or f"a condition has the type {condition.dtype}"
                if statement.elsewhere and statement.elsewhere not in self.read_only:
                    problem = problem or f"{statement.elsewhere} is no input"
                return problem or self.body(inner, ranges, guarded=True, loops=loops)
            case Allocate(memory=memory, scope=scope, body=inner, ahead=ahead):
                problem = "" if ahead is None else self._value(ahead.first, ranges, True)
                return problem or self._allocate(memory, scope, inner, ranges, guarded, loops)
            case Store() | Update():
                return self._store(statement, ranges, guarded)
            case Dot():
                return self._dot(statement, ranges, guarded)
            case TileZero() | TileLoad() | TileDot() | TileStore():
                return self._tile(statement, ranges, guarded, loops)
            case Carry(update=update):
                carried = Load(update.value.dtype, update.buffer, update.indices)
                stored = Store(statement.buffer, statement.indices, carried)
                problem = self._store(update, ranges, guarded)
                return problem or self._store(stored, ranges, guarded)
            case _:
                return f"{type(statement).__name__} is no statement"

    def _for(self, loop: For, ranges: Ranges, guarded: bool, loops: tuple[LoopKind, ...]) -> str:
        if loop.variable in ranges:
            return f"{loop.variable} is bound twice"
        if loop.start >= loop.stop:
            return f"loop {loop.variable} is empty"
        if loop.kind is LoopKind.PARALLEL:
            if any(kind is not LoopKind.SERIAL for kind in loops):
                return f"parallel loop {loop.variable} is inside another loop that is not serial"
            if self.private:
                return f"parallel loop {loop.variable} is where {self.private[-1]} is of one thread"
        if LoopKind.VECTORISED in loops and loop.kind is not LoopKind.UNROLLED:
            return f"vectorised loop round the {loop.kind} loop {loop.variable}"
        for what, end, kinds in (
            ("limit", loop.limit, (LoopKind.SERIAL, LoopKind.PARALLEL)),
            ("first round", loop.begins, (LoopKind.SERIAL,)),
        ):
            if end is None:
                continue
            if loop.kind not in kinds:
                return f"the {loop.kind} loop {loop.variable} has a {what}"
            if end.dtype is not DType.I64:
                return f"the {what} of loop {loop.variable} has the type {end.dtype}"
            problem = self._value(end, ranges, guarded)
            if problem:
                return problem
        if loop.worth is not None:
            if loop.kind is not LoopKind.PARALLEL or loop.worth.dtype is not DType.BOOL:
                return f"the {loop.kind} loop {loop.variable} is worth {loop.worth.dtype}"
            problem = self._value(loop.worth, ranges, guarded)
            if problem:
                return problem
        inner = {**ranges, loop.variable: (loop.start, loop.stop - 1)}
        if loop.kind is LoopKind.UNROLLED:
            self.unrolled.append(loop.variable)
        with self.places.inside(loop):
            problem = self.body(loop.body, inner, guarded=guarded, loops=(*loops, loop.kind))
        if loop.kind is LoopKind.UNROLLED:
            self.unrolled.pop()
        return problem

    def _allocate(
        self,
        memory: Memory,
        scope: Scope,
        inner: tuple[Stmt, ...],
        ranges: Ranges,
        guarded: bool,
        loops: tuple[LoopKind, ...],
    ) -> str:
        if memory.name in self.memories or memory.name in self.tiles:
            return f"{memory.name} is allocated inside of itself"
        if scope is Scope.WORKSPACE and any(kind is not LoopKind.SERIAL for kind in loops):
            return f"workspace {memory.name} is allocated inside a loop that is not serial"
        if LoopKind.VECTORISED in loops:
            return f"the lanes of a vectorised loop share {memory.name}"
        scoped = self.memories
        if scope is Scope.TILE:
            problem, scoped = tile_memory_problem(memory, self.tiles.values()), self.tiles
            if problem:
                return problem
        scoped[memory.name] = memory
        self.places.allocate(memory.name)
        if scope is not Scope.WORKSPACE:
            self.private.append(memory.name)
        problem = self.body(inner, ranges, guarded=guarded, loops=loops)
        if scope is not Scope.WORKSPACE:
            self.private.pop()
        del scoped[memory.name]
        return problem

    def _tile(
        self, statement: TileStmt, ranges: Ranges, guarded: bool, loops: tuple[LoopKind, ...]
    ) -> str:
        if LoopKind.VECTORISED in loops:
            return "a vectorised loop holds tiles, which are vectors of vectors"
        problem = tile_problem(statement, self.tiles, self.unrolled, ranges)
        if problem or not isinstance(statement, TileLoad | TileStore):
            return problem
        place = statement.source
        if isinstance(statement, TileStore):
            memory = self.memories.get(statement.buffer)
            if memory is None or statement.buffer in self.read_only:
                return f"a tile is stored to {statement.buffer}, which is no output or allocation"
            place = Load(memory.dtype, memory.name, statement.indices)
        problem = self._value(place, ranges, guarded)
        return problem or rows_problem(statement, self.memories, self.tiles, ranges)

    def _dot(self, statement: Dot, ranges: Ranges, guarded: bool) -> str:
        memory, variable = self.memories.get(statement.buffer), statement.variable
        if memory is None or statement.buffer in self.read_only:
            return f"{statement.buffer} is summed up in, but is no output or allocation"
        if variable in ranges:
            return f"{variable} is bound twice"
        if statement.count < 1:
            return f"the dot product over {variable} is empty"
        target = Load(memory.dtype, memory.name, statement.indices)
        problem = self._value(target, ranges, guarded)
        inner = {**ranges, variable: (0, statement.count - 1)}
        for factor in (statement.left, statement.right):
            problem = problem or _factor_problem(factor, memory.dtype)
            problem = problem or self._value(factor, inner, guarded)
        return problem

    def _store(self, statement: Store | Update, ranges: Ranges, guarded: bool) -> str:
        memory = self.memories.get(statement.buffer)
        if memory is None or statement.buffer in self.read_only:
            return f"{statement.buffer} is stored to, but is no output or allocation"
        if statement.value.dtype is not memory.dtype:
            return f"{statement.buffer} of {memory.dtype} is given a {statement.value.dtype}"
        if isinstance(statement, Update) and statement.combiner not in COMBINERS:
            return f"unknown combiner {statement.combiner!r}"
        target = Load(memory.dtype, memory.name, statement.indices)
        return (
            self._value(target, ranges, guarded)
            or self._value(statement.value, ranges, guarded)
            or self.places.problem(statement)
        )

    def _indices(
        self, memory: Memory, indices: tuple[Expr, ...], ranges: Ranges, guarded: bool
    ) -> str:
        for axis, (extent, item) in enumerate(zip(memory.shape, indices, strict=True)):
            low, high = affine_range(affine(item, ranges), ranges)
            known = low > -(1 << 40) and high < 1 << 40
            if known and not guarded and (low < 0 or high >= extent):
                return f"{memory.name}: index {axis} runs over {low}..{high}, extent {extent}"
        return ""

    def _value(self, expr: Expr, ranges: Ranges, guarded: bool) -> str:
        seen: set[tuple[int, bool]] = set()

        def check(node: Expr, guarded: bool) -> str:
            if (id(node), guarded) in seen:
                return ""
            seen.add((id(node), guarded))
            problem = node_problem(node, ranges, self.memories)
            if isinstance(node, Load) and not problem:
                problem = self._indices(self.memories[node.buffer], node.indices, ranges, guarded)
            if isinstance(node, Select) and not problem:
                return (
                    check(node.condition, guarded)
                    or check(node.then, True)
                    or check(node.otherwise, True)
                )
            for operand in children(node):
                problem = problem or check(operand, guarded)
            return problem

        return check(expr, guarded)


def _factor_problem(factor: Expr, total: DType) -> str:
    """Why the expression is no factor of a dot product in the type `total`; "" if it is one."""
    if factor.dtype.bytes >= total.bytes or not total.holds(factor.dtype):
        return f"a dot product of {factor.dtype} is summed up in {total}, which does not hold it"
    if isinstance(factor, Select):
        if loads(factor.condition):
            return "a factor of a dot product depends on data by more than its value"
        return _factor_problem(factor.then, total) or _factor_problem(factor.otherwise, total)
    loaded = isinstance(factor, Load | Const) or is_unpacked(factor)
    return "" if loaded else "a factor of a dot product is computed"


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
