"""Guards: which shapes each admits, and how a refusal names the sizes that there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.runtime.spec.guards import SizeGuard, refusal, sizes_text

guards = st.builds(
    SizeGuard,
    st.sampled_from(["batch", "seq"]),
    st.sampled_from(["x", "y"]),
    st.integers(0, 3),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(guards, st.lists(st.integers(0, 9), max_size=4).map(tuple))
def test_a_guard_admits_what_lies_within_it(guard: SizeGuard, shape: tuple[int, ...]) -> None:
    is_within = guard.axis < len(shape) and shape[guard.axis] in range(guard.low, guard.high + 1)
    assert guard.admits(shape) == is_within


@given(guards)
def test_json_gives_the_guard_back(guard: SizeGuard) -> None:
    assert SizeGuard.from_json(guard.to_json()) == guard


def test_a_symbol_of_several_inputs_is_told_once() -> None:
    pair = (SizeGuard("batch", "x", 0, 4, 4), SizeGuard("batch", "y", 0, 4, 4))
    assert sizes_text(pair) == "batch=4"
    assert sizes_text((*pair, SizeGuard("seq", "x", 1, 1, 64))) == "batch=4, seq=1..64"


def test_a_combination_that_is_missing_is_told_with_all_that_there_are() -> None:
    programs = [
        (SizeGuard("batch", "x", 0, batch, batch), SizeGuard("seq", "x", 1, seq, seq))
        for batch, seq in ((1, 8), (2, 16))
    ]
    told = refusal(programs, {"x": (1, 16)})
    assert told == (
        "the model has no program for the sizes of x [1, 16]: "
        "it was built for batch=1, seq=8; batch=2, seq=16"
    )
