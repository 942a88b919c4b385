"""How evenly a kernel's loops can be shared among threads, told from the loops alone."""

from __future__ import annotations

from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, LoopKind


def work(body: Body) -> int:
    """Statements that run, a vector as one."""
    return sum(_inner_work(statement) for statement in body)


def longest_share(body: Body, threads: int) -> int:
    """Statements that run one after another, if threads take chunks as soon as they are free.

    Between `work` over the number of threads and `work`, which means that nothing is shared.
    """
    total = 0
    for statement in body:
        if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            total += _busiest(statement, threads) * work(statement.body)
        elif isinstance(statement, For):
            total += _turns(statement) * longest_share(statement.body, threads)
        elif isinstance(statement, Let | If | Allocate):
            total += longest_share(statement.body, threads)
        else:
            total += _inner_work(statement)
    return total


def _inner_work(statement: object) -> int:
    if isinstance(statement, For):
        return _turns(statement) * work(statement.body)
    return work(statement.body) if isinstance(statement, Let | If | Allocate) else 1


def _turns(loop: For) -> int:
    return 1 if loop.kind is LoopKind.VECTORISED else loop.stop - loop.start


def _busiest(loop: For, threads: int) -> int:
    """Iterations of the thread that gets most of a parallel loop."""
    extent = loop.stop - loop.start
    chunks = min(extent, loop.chunks * threads)
    taken = [0] * threads
    for number in range(chunks):
        least = min(range(threads), key=taken.__getitem__)
        taken[least] += extent // chunks + (number < extent % chunks)
    return max(taken)
