"""How evenly threads share a kernel's work, counted from its loops: no such machine is needed.

Threads draw chunks of a parallel loop in their order, see `tunefarm.compiler.llvm.parallel_loops`.
All rounds of a loop count alike, statements under a condition as if it held, and loops that end at
run time at their bounds. What is in no parallel loop is one thread's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, integer, mul
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Stmt,
    TileDot,
    Update,
    walk,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

_TILE_PRODUCTS = 16 * 16 * 16
"""Of a product of matrix tiles of 16 rows of 16 numbers."""


@frozen
class LoopShares:
    """How a parallel loop of `rounds` is shared; `work` are its operations in all.

    `imbalance` is the largest share over the mean of all threads: 1 is even.
    """

    variable: str
    rounds: int
    chunks: int
    work: int
    imbalance: float


@frozen
class KernelShares:
    """The parallel loops of a kernel, and the operations in none of them."""

    loops: tuple[LoopShares, ...]
    serial: int
    threads: int

    @property
    def work(self) -> int:
        """All operations."""
        return self.serial + sum(loop.work for loop in self.loops)

    @property
    def longest(self) -> float:
        """The operations of the thread that has most in each loop, and what only one does."""
        return self.serial + sum(loop.work * loop.imbalance / self.threads for loop in self.loops)

    @property
    def efficiency(self) -> float:
        """The share of the ideal speed-up, which is the number of threads."""
        return self.work / (self.threads * self.longest) if self.longest else 1.0


def shares_of(nest: LoopNest, threads: int) -> KernelShares:
    """How so many threads share the loops of a kernel."""
    loops: list[LoopShares] = []
    serial = sum(_shared(statement, 1, threads, loops) for statement in nest.body)
    return KernelShares(tuple(loops), serial, threads)


def largest_share(rounds: int, threads: int, chunks: int) -> int:
    """The rounds of the thread that has most, where each draws `chunks` of a loop, or fewer."""
    count = min(threads * chunks, rounds)
    if count == 0:
        return 0
    length, longer = divmod(rounds, count)
    busy = [0] * threads
    for number in range(count):
        heapq.heapreplace(busy, busy[0] + length + (number < longer))
    return max(busy)


def _shared(statement: Stmt, times: int, threads: int, found: list[LoopShares]) -> int:
    """The operations of a statement that one thread does; its parallel loops are `found`."""
    if isinstance(statement, For):
        rounds = statement.stop - statement.start
        if statement.kind is LoopKind.PARALLEL:
            work = times * rounds * sum(map(_operations, statement.body))
            most = largest_share(rounds, threads, statement.chunks)
            even = most * threads / rounds if rounds else 1.0
            chunks = min(threads * statement.chunks, rounds)
            found.append(LoopShares(statement.variable, rounds, chunks, work, even))
            return 0
        times *= rounds
    inner = _inside(statement)
    if inner is None:
        return times * _operations(statement)
    return sum(_shared(part, times, threads, found) for part in inner)


def _operations(statement: Stmt) -> int:
    """How many elements a statement computes, whoever does."""
    inner = _inside(statement)
    if inner is None:
        if isinstance(statement, Dot):
            return statement.count
        return _TILE_PRODUCTS if isinstance(statement, TileDot) else 1
    work = sum(map(_operations, inner))
    return work * (statement.stop - statement.start) if isinstance(statement, For) else work


def _inside(statement: Stmt) -> Sequence[Stmt] | None:
    """The statements in another one; None of what has none."""
    return statement.body if isinstance(statement, For | Let | If | Allocate) else None


def shares_text(shares: KernelShares) -> str:
    """A line for each parallel loop, and one for the kernel."""
    lines = [
        f"parallel for {loop.variable} in {loop.rounds} ({loop.chunks} chunks): largest share / "
        f"mean {loop.imbalance:.2f}, {loop.work / shares.work:.1%} of the operations"
        for loop in shares.loops
    ]
    if shares.serial:
        lines.append(f"in no parallel loop: {shares.serial / shares.work:.1%} of the operations")
    lines.append(f"{shares.efficiency:.1%} of the ideal of {shares.threads} threads")
    return "\n".join(lines)


def total_efficiency(kernels: Iterable[tuple[KernelShares, int]]) -> float:
    """That of kernels that are called so many times, one after the other."""
    work, longest = 0.0, 0.0
    for shares, calls in kernels:
        work += calls * shares.work / shares.threads
        longest += calls * shares.longest
    return work / longest if longest else math.nan


# Whether threads share a loop at all: where its length is dynamic, from the length on at which
# that pays.


MIN_SHARED_PRODUCTS = 1 << 17
"""Products of a loop, summed up, below which a second thread costs more than it saves."""
STORED = 8  # such products to an element that is computed and stored


def parallel_profit(nest: LoopNest, before: LoopNest, limits: Sequence[ValidExtent]) -> LoopNest:
    """The nest, whose parallel loops threads share where they have `MIN_SHARED_PRODUCTS`.

    `before` is the nest without limits, in which loops do what they do at the bounds.
    """
    if not limits or not any(_is_parallel(statement) for statement in walk(nest.body)):
        return nest
    most = {
        loop.variable: _work((loop,))
        for loop in walk(before.body)
        if isinstance(loop, For) and _is_parallel(loop)
    }
    return replace(nest, body=_shared_where_worth(nest.body, most, _strictest(limits)))


def _strictest(limits: Sequence[ValidExtent]) -> list[ValidExtent]:
    """Of limits that compare the same size along the same places, that of the smallest extent."""
    found: dict[tuple[int, str, int, int], ValidExtent] = {}
    for limit in sorted(limits, key=lambda limit: limit.extent, reverse=True):
        found[limit.stride, limit.sizes, limit.number, limit.offset] = limit
    return [limit for limit in limits if limit in found.values()]


def _is_parallel(statement: Stmt) -> bool:
    return isinstance(statement, For) and statement.kind is LoopKind.PARALLEL


def _work(body: Body) -> int:
    """What a body does at the bounds, in products."""
    total = 0
    for statement in body:
        if isinstance(statement, For):
            total += (statement.stop - statement.start) * _work(statement.body)
        elif isinstance(statement, Let | If | Allocate):
            total += _work(statement.body)
        else:
            total += 1 if isinstance(statement, Update) else STORED
    return total


def _shared_where_worth(body: Body, most: dict[str, int], limits: Sequence[ValidExtent]) -> Body:
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            work = most.get(statement.variable, MIN_SHARED_PRODUCTS)
            statement = replace(statement, worth=_worth(work, limits))
        elif isinstance(statement, For):
            read = loads(statement.limit) if statement.limit is not None else []
            ends = {(load.buffer, load.indices) for load in read}
            inside = [item for item in limits if (item.sizes, _place(item)) not in ends]
            statement = replace(statement, body=_shared_where_worth(statement.body, most, inside))
        elif isinstance(statement, Let | If | Allocate):
            statement = replace(statement, body=_shared_where_worth(statement.body, most, limits))
        made.append(statement)
    return tuple(made)


def _place(limit: ValidExtent) -> tuple[Expr, ...]:
    """Where a limit's size is in the input that has it."""
    return (integer(limit.number),)


def _worth(work: int, limits: Sequence[ValidExtent]) -> Expr | None:
    """Whether so much work at the bounds is enough at the sizes; None where it always is."""
    whole = math.prod(limit.extent for limit in limits)
    needed = -(-MIN_SHARED_PRODUCTS * whole // work)
    if needed <= 1:
        return None
    product: Expr = integer(1)
    for limit in limits:
        size = Load(DType.I64, limit.sizes, _place(limit))
        there = binary("min", add(size, integer(limit.offset)), integer(limit.extent))
        product = mul(product, there)
    return binary("le", integer(needed), product)
