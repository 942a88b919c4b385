"""The anchor takes the same time for the same work."""

from __future__ import annotations

import numpy as np

from compiler.llvm.anchor import ANCHOR_SYMBOL, anchor_object
from compiler.target import host_target
from measure.worker.anchor import Anchor


def test_seconds_are_of_one_round_whatever_was_calibrated() -> None:
    first, second = Anchor(host_target()), Anchor(host_target())
    ratios = [first.seconds() / second.seconds() for _ in range(9)]
    assert 0.5 < np.median(ratios) < 2.0


def test_object_code_is_the_same_each_time() -> None:
    code = anchor_object(host_target())
    anchor_object.cache_clear()
    assert anchor_object(host_target()) == code
    assert ANCHOR_SYMBOL.encode() in code
