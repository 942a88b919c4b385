"""What a canary says of planted changes: a slow-down of 3 %, wrong outputs, and no change at all.

Each is planted 20 times. The slow model runs 3 % more calls of a kernel; the unchanged one has the
same code but for its arena, so that it is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec, sealed
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, ExecutableSpec
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.verify.canary import Canary, CanaryVerdict, compare_artifacts

PLANTED = 20
CALLS = 8000  # of the first kernel: 0.3 ms or more, next to which a run's own cost is nothing
MORE = 1.03
SECONDS = 60.0
WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)


def with_calls(spec: ExecutableSpec, calls: int) -> ExecutableSpec:
    """The same outputs, with so many calls of the first kernel."""
    first, *rest = spec.steps
    return sealed(replace(spec, steps=(*[first] * calls, *rest)))


def compared(folder: Path, old: ExecutableSpec, new: ExecutableSpec) -> Canary:
    for name, spec in (("old", old), ("new", new)):
        Executable(spec).save(folder / f"{name}.tuned")
    return compare_artifacts(f"{folder}/old.tuned", f"{folder}/new.tuned", None, SECONDS)


def verdicts(found: list[Canary]) -> Counter[CanaryVerdict]:
    return Counter(item.verdict for item in found)


@pytest.mark.nightly
def test_slow_downs_of_three_percent_are_found(tmp_path: Path) -> None:
    spec = chain_spec(WEIGHT)
    old, slow = with_calls(spec, CALLS), with_calls(spec, round(CALLS * MORE) + 1)
    found = [compared(tmp_path, old, slow) for _ in range(PLANTED)]
    assert verdicts(found) == {CanaryVerdict.SLOWER: PLANTED}, [item.time for item in found]


@pytest.mark.nightly
def test_no_change_is_claimed_where_there_is_none(tmp_path: Path) -> None:
    old = with_calls(chain_spec(WEIGHT), CALLS)
    same = sealed(replace(old, arena_bytes=old.arena_bytes + ALIGNMENT))
    found = [compared(tmp_path, old, same) for _ in range(PLANTED)]
    assert not any(item.time is None or item.time.is_unchanged for item in found)
    assert verdicts(found) == {CanaryVerdict.PASSED: PLANTED}, [item.time for item in found]


def _scaled(weight: Array, place: int) -> None:
    weight[place] *= 1.02


def _zeroed(weight: Array, place: int) -> None:
    weight[place] = 0.0


def _swapped(weight: Array, place: int) -> None:
    weight[[place, place - 1]] = weight[[place - 1, place]]


def _not_a_number(weight: Array, place: int) -> None:
    weight[place] = np.nan


def _infinite(weight: Array, place: int) -> None:
    weight[place] = np.inf


@pytest.mark.parametrize("wrong", [_scaled, _zeroed, _swapped, _not_a_number, _infinite])
@pytest.mark.parametrize("place", [COUNT - 1, COUNT - 3, COUNT - 9, COUNT - 14])
def test_wrong_outputs_are_found(
    wrong: Callable[[Array, int], None], place: int, tmp_path: Path
) -> None:
    weight = WEIGHT.copy()
    wrong(weight, place)
    found = compared(tmp_path, chain_spec(WEIGHT), chain_spec(weight))
    assert (found.verdict, found.time) == (CanaryVerdict.WRONG, None)
    assert [item.output for item in found.differences] == ["y"]
