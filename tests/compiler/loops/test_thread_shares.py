"""Shares of threads are counted as the emitted loops draw their chunks."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Const
from tunefarm.compiler.loops.ir import For, LoopKind, LoopNest, Memory, Stmt, Store
from tunefarm.compiler.loops.thread_shares import (
    largest_share,
    shares_of,
    shares_text,
    total_efficiency,
)
from tunefarm.compiler.types.dtypes import DType

OUT = Memory("out", DType.F32, (1,))
ONE: Stmt = Store("out", (), Const(DType.F32, 1.0))


def nest(*body: Stmt) -> LoopNest:
    return LoopNest("k", (), OUT, body)


def loop(rounds: int, *body: Stmt, kind: LoopKind = LoopKind.SERIAL, chunks: int = 1) -> For:
    return For(f"i{rounds}", 0, rounds, kind, body, chunks)


@pytest.mark.parametrize(
    ("rounds", "threads", "chunks", "most"),
    [
        (64, 16, 1, 4),
        (65, 16, 1, 5),
        (3, 16, 1, 1),
        (17, 16, 4, 2),
        (100, 16, 4, 7),
        (10, 4, 2, 3),
        (0, 4, 1, 0),
        (7, 1, 1, 7),
    ],
)
def test_the_largest_share_is_what_one_thread_draws(
    rounds: int, threads: int, chunks: int, most: int
) -> None:
    assert largest_share(rounds, threads, chunks) == most


def test_shares_are_never_better_than_even() -> None:
    for rounds in range(1, 200):
        for threads in (1, 2, 7, 16, 64):
            for chunks in (1, 2, 4):
                assert -(-rounds // threads) <= largest_share(rounds, threads, chunks) <= rounds


def test_an_even_loop_is_ideal() -> None:
    shares = shares_of(nest(loop(64, loop(8, ONE), kind=LoopKind.PARALLEL)), 16)
    assert (shares.work, shares.longest, shares.efficiency) == (512, 32.0, 1.0)
    assert [item.imbalance for item in shares.loops] == [1.0]


def test_rounds_that_threads_do_not_divide_are_uneven() -> None:
    (found,) = shares_of(nest(loop(65, ONE, kind=LoopKind.PARALLEL)), 16).loops
    assert found.imbalance == pytest.approx(5 * 16 / 65)


def test_what_is_in_no_parallel_loop_is_one_threads() -> None:
    shares = shares_of(nest(loop(10, ONE), loop(160, ONE, kind=LoopKind.PARALLEL)), 16)
    assert (shares.serial, shares.work, shares.longest) == (10, 170, 20.0)
    assert shares.efficiency == pytest.approx(170 / 320)
    assert "in no parallel loop: 5.9%" in shares_text(shares)


def test_serial_loops_outside_repeat_a_parallel_one() -> None:
    shares = shares_of(nest(loop(3, loop(8, ONE, kind=LoopKind.PARALLEL))), 4)
    assert (shares.work, shares.longest, shares.loops[0].work) == (24, 6.0, 24)


def test_kernels_count_as_often_as_they_are_called() -> None:
    even = shares_of(nest(loop(16, ONE, kind=LoopKind.PARALLEL)), 16)
    alone = shares_of(nest(loop(16, ONE)), 16)
    assert total_efficiency(iter([(even, 15), (alone, 1)])) == pytest.approx(16 / (15 + 16))
