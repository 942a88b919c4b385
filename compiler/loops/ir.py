"""Loops: explicit loops over buffers; the last representation before LLVM.

Expressions are those of `tunefarm.compiler.expr.nodes`; an `Index` names a loop variable or a
let-bound one, and a `Load` reads a parameter or an allocated buffer (row-major, in elements).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from operator import is_
from typing import TypeAlias

from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.kernels.kernel import Pitch
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace
from tunefarm.compiler.types.tensor_type import TensorType


class LoopKind(StrEnum):
    """How a loop runs."""

    SERIAL = "for"
    PARALLEL = "parallel for"
    VECTORISED = "vector for"
    UNROLLED = "unrolled for"


class Scope(StrEnum):
    """Where an allocated buffer lives."""

    REGISTER = "register"  # indices are constants after unrolling
    STACK = "stack"  # private to the thread
    WORKSPACE = "workspace"  # memory that the caller gives, shared by all threads
    TILE = "tile"  # matrix tiles: the last two dimensions are one tile's rows and columns


@frozen
class Memory:
    """A buffer: a parameter of the kernel, which may have a `pitch`, or an allocation."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    pitch: Pitch | None = None

    @property
    def type(self) -> TensorType:
        """Element type and shape as one."""
        return TensorType(self.dtype, self.shape)


@frozen
class Stmt:
    """Base of statements."""


Body: TypeAlias = tuple[Stmt, ...]


@frozen
class For(Stmt):
    """`for start <= variable < stop: body`; `chunks` per thread for a parallel loop.

    A serial or parallel loop with a `limit`, an i64 value that the body does not change, ends there
    if that comes before `stop`, and a serial one `begins` there if that comes after `start`: it may
    have no rounds at all. Threads share a parallel loop where it is `worth` that, a bool;
    everywhere without.
    """

    variable: str
    start: int
    stop: int
    kind: LoopKind
    body: Body
    chunks: int = 1
    limit: Expr | None = None
    worth: Expr | None = None
    begins: Expr | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has the same rounds in every run."""
        return self.limit is None and self.begins is None


@frozen
class Let(Stmt):
    """Bind an i64 variable in `body`."""

    variable: str
    value: Expr
    body: Body


@frozen
class If(Stmt):
    """Run `body` where the bool condition holds.

    If an input is `elsewhere`, not in the memory of the result, the body runs in any case.
    """

    condition: Expr
    body: Body
    elsewhere: str = ""


@frozen
class Store(Stmt):
    """`buffer[indices] = value`."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr


@frozen
class Update(Stmt):
    """`buffer[indices] = combiner(buffer[indices], value)`; a sum may use fused multiply-add."""

    buffer: str
    indices: tuple[Expr, ...]
    combiner: str
    value: Expr


@frozen
class Dot(Stmt):
    """`buffer[indices] +=` the sum of `left * right` over 0 <= `variable` < `count`.

    The factors are of narrow types, and converted to the buffer's type, in which products and sums
    are formed: integers are exact and wrap around; in what order floats are added is left open, and
    their denormals may count as 0. Factors are loads, constants, what is unpacked from loads
    (`tunefarm.compiler.expr.packed_fields`), or selects among those by conditions on indices; only
    they see
    `variable`.

    With `widened`, factors are converted one by one, whatever dot products the target has.
    """

    buffer: str
    indices: tuple[Expr, ...]
    variable: str
    count: int
    left: Expr
    right: Expr
    widened: bool = False


@frozen
class TileZero(Stmt):
    """The tile `buffer[indices]` = 0."""

    buffer: str
    indices: tuple[Expr, ...]


@frozen
class TileLoad(Stmt):
    """The tile `buffer[indices]` = rows of memory, the first from the element `source` on.

    A row's elements lie one after the other, whatever dimensions of `source` they are of, and rows
    lie `stride` elements apart.
    """

    buffer: str
    indices: tuple[Expr, ...]
    source: Load
    stride: int


@frozen
class TileDot(Stmt):
    """`buffer[indices][r, l] +=` the sum over s and v < n of `left[r, n s + v] * right[s, n l + v]`

    where `left` and `right` are tiles too, of a narrow type of which n elements have 4 bytes. What
    is said of `Dot` of types, order and denormals goes for this too.
    """

    buffer: str
    indices: tuple[Expr, ...]
    left: Load
    right: Load


@frozen
class TileStore(Stmt):
    """Rows of memory, `stride` elements apart, from `buffer[indices]` on = the tile `source`."""

    buffer: str
    indices: tuple[Expr, ...]
    source: Load
    stride: int


TileStmt: TypeAlias = TileZero | TileLoad | TileDot | TileStore


@frozen
class Carry(Stmt):
    """`update`, then `buffer[indices] =` what it updated; the other way round if `exclusive`.

    In a vectorised loop the lanes run one after the other, like the rounds of any other loop.
    """

    buffer: str
    indices: tuple[Expr, ...]
    update: Update
    exclusive: bool


@frozen
class Ahead:
    """What vector loads of a copy ask for: as far behind `first`, an element of what is copied, as
    they are behind the copy's first element, and `distance` elements further."""

    first: Load
    distance: int


@frozen
class Allocate(Stmt):
    """A buffer with undefined contents that exists in `body`."""

    memory: Memory
    scope: Scope
    body: Body
    ahead: Ahead | None = None


@frozen
class LoopNest:
    """A kernel as loops: parameters (inputs in order, packed; then the output) and a body."""

    name: str
    inputs: tuple[Memory, ...]
    output: Memory
    body: Body
    prefetches: tuple[tuple[str, int], ...] = ()  # buffer, elements ahead of each vector load


def written(statement: Stmt) -> tuple[Store | Update | Dot | Carry | TileStore, ...]:
    """The writes to memory that a statement is made of: none for those with a body."""
    if isinstance(statement, Carry):
        return (statement, statement.update)
    return (statement,) if isinstance(statement, Store | Update | Dot | TileStore) else ()


def values_of(statement: Store | Update | Dot) -> tuple[Expr, ...]:
    """The expressions that a write evaluates, but for its indices."""
    return (statement.left, statement.right) if isinstance(statement, Dot) else (statement.value,)


def uses_tiles(body: Body) -> bool:
    """Some statement of a body is about matrix tiles."""
    return any(isinstance(statement, TileStmt) for statement in walk(body))


def walk(body: Body) -> Iterator[Stmt]:
    """Every statement of a body, outer before inner."""
    left = [*reversed(body)]
    while left:
        statement = left.pop()
        yield statement
        if isinstance(statement, For | Let | If | Allocate):
            left.extend(reversed(statement.body))


def with_body(statement: For | Let | If | Allocate, body: Body) -> Stmt:
    """The statement with another body; itself where that is the same."""
    same = len(body) == len(statement.body) and all(map(is_, body, statement.body))
    return statement if same else replace(statement, body=body)
