"""Guards: which shapes they admit, and how a refusal names the sizes that there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.runtime.spec.guards import SizeGuard, admit, refusal, sizes_text

guards = st.builds(
    SizeGuard,
    st.sampled_from(["batch", "seq"]),
    st.sampled_from(["x", "y"]),
    st.integers(0, 3),
    st.integers(0, 9),
    st.integers(0, 9),
)
shapes = st.dictionaries(
    st.sampled_from(["x", "y"]), st.lists(st.integers(0, 9), max_size=4).map(tuple)
)


@given(st.lists(guards), shapes)
def test_guards_admit_what_lies_within_all_of_them(
    found: list[SizeGuard], given: dict[str, tuple[int, ...]]
) -> None:
    expected = all(
        guard.axis < len(given[guard.input])
        and given[guard.input][guard.axis] in range(guard.low, guard.high + 1)
        for guard in found
        if guard.input in given
    )
    assert admit(found, given) == expected


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
