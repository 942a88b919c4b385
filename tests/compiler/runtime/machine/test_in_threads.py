"""Work is done once for every item, and errors are not lost."""

from __future__ import annotations

import threading

import pytest

from tunefarm.compiler.runtime.machine.in_threads import in_threads


def test_results_are_in_the_order_of_the_items() -> None:
    assert in_threads(lambda n: n * n, range(1000)) == [n * n for n in range(1000)]
    assert in_threads(str, iter(())) == []


def test_two_items_are_worked_on_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)
    assert sorted(in_threads(lambda _: both.wait(), range(2))) == [0, 1]


def test_an_error_is_raised_when_nothing_is_under_way_any_more() -> None:
    both, ended = threading.Barrier(2, timeout=10), threading.Event()

    begun = []

    def work(number: int) -> None:
        begun.append(number)
        both.wait()
        if number == 0:
            raise ValueError("item 0")
        ended.wait(0.2)
        ended.set()

    with pytest.raises(ValueError, match="item 0"):
        in_threads(work, range(1000))
    assert ended.is_set()
    assert sorted(begun) == [0, 1]
