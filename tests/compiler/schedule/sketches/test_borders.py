"""Borders: every position at which a comparison of indices flips, and no other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.schedule.small_kernels import kernel_of
from tests.targets import target_named
from tunefarm.compiler.expr.affine import decide
from tunefarm.compiler.expr.nodes import Expr, add, binary, index, integer, mul, select
from tunefarm.compiler.kernels.stage import Axis
from tunefarm.compiler.loops.ir import For, If, walk
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.sketches.borders import MAX_BORDERS, borders, period, tile_cuts
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

TARGET = target_named("x86-64-v4")
AXIS = Axis("i", 40)


def line(slope: int, constant: int) -> Expr:
    return add(mul(index("i"), integer(slope)), integer(constant))


@given(
    st.sampled_from(["lt", "le", "gt", "ge"]),
    st.integers(-3, 3).filter(bool),
    st.integers(-90, 90),
    st.integers(-9, 9),
)
def test_a_comparison_flips_at_its_border(
    operator: str, slope: int, constant: int, right: int
) -> None:
    condition = binary(operator, line(slope, constant), integer(right))
    verdicts = [decide(condition, {"i": (i, i)}) for i in range(AXIS.extent)]
    flips = [i for i in range(1, AXIS.extent) if verdicts[i] != verdicts[i - 1]]
    assert borders(condition, AXIS) == tuple(flips)


@pytest.mark.parametrize("operator", ["min", "max"])
@pytest.mark.parametrize(("slope", "constant"), [(1, -11), (-1, 20), (2, -11)])
def test_a_clamped_index_is_linear_between_its_borders(
    operator: str, slope: int, constant: int
) -> None:
    clamped = binary(operator, line(slope, constant), integer(6))
    ends = [0, *borders(clamped, AXIS), AXIS.extent]
    assert len(ends) == 3
    below = binary("lt", line(slope, constant), integer(6))
    for first, stop in pairwise(ends):
        assert len({decide(below, {"i": (i, i)}) for i in range(first, stop)}) == 1


@pytest.mark.parametrize(
    ("body", "positions"),
    [
        (binary("max", binary("floordiv", line(1, -3), integer(2)), integer(0)), (3,)),
        (binary("floordiv", line(1, 0), integer(20)), (20,)),
        (binary("mod", line(1, 5), integer(20)), (15, 35)),
        (binary("floordiv", line(1, 0), integer(2)), ()),
    ],
)
def test_divided_positions_have_borders_where_vectors_lie_along_them(
    body: Expr, positions: tuple[int, ...]
) -> None:
    assert borders(body, AXIS, in_lanes=True) == positions
    assert borders(body, AXIS) == ()


@pytest.mark.parametrize(
    ("slope", "divisor", "positions"), [(1, 3, 3), (2, 6, 3), (4, 2, 1), (1, 99, 1)]
)
def test_divided_positions_repeat_their_pattern(slope: int, divisor: int, positions: int) -> None:
    divided = binary("floordiv", line(slope, 1), integer(divisor))
    assert period(divided, AXIS) == positions
    assert period(binary("floordiv", index("j"), integer(3)), AXIS) == 1


def test_what_depends_on_other_axes_or_on_data_has_no_border() -> None:
    two = binary("lt", add(index("i"), index("j")), integer(7))
    other = binary("lt", index("j"), integer(7))
    chosen = select(binary("and", two, other), integer(1), integer(0))
    assert borders(chosen, AXIS) == ()


def test_many_borders_are_left_as_they_are() -> None:
    body: Expr = integer(0)
    for position in range(1, MAX_BORDERS + 1):
        body = select(binary("lt", index("i"), integer(position)), integer(position), body)
    assert len(borders(body, AXIS)) == MAX_BORDERS
    more = select(binary("lt", index("i"), integer(39)), integer(1), body)
    assert borders(more, AXIS) == ()


def test_only_tiles_that_hold_a_border_stand_alone() -> None:
    factors = np.array([8, 4])
    assert [cuts.tolist() for cuts in tile_cuts((8, 21), factors)] == [
        [1, 2],
        [1, 2],
        [2, 5],
        [3, 6],
    ]
    assert tile_cuts((), factors) == ()


@pytest.mark.parametrize("dilation", [1, 9, 16, 40, 90])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_term_is_guarded_inside_of_borders_wider_than_a_tile(dilation: int, stride: int) -> None:
    attributes: dict[str, str | tuple[int, ...]] = {
        "layout": "NCHWc",
        "pads": (0, dilation, 0, dilation),
        "dilations": (1, dilation),
        "strides": (1, stride),
    }
    data, weight = (TensorType(DType.F32, shape) for shape in ((1, 2, 1, 400, 16), (32, 32, 1, 3)))
    kernel = kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])
    space = schedule_space(kernel, TARGET)
    sketch = space.sketches[0]
    names = [choice.name for choice in sketch.choices]
    values: dict[str, Any] = dict(zip(names, sketch.default, strict=True))
    candidate = space.find(sketch.name, {**values, "padding": "inline"})
    assert candidate is not None
    nest = lower(kernel, space.schedule(candidate))
    pieces = [s for s in walk(nest.body) if isinstance(s, For) and s.variable.startswith("ow.o")]
    longest = max(pieces, key=lambda loop: loop.stop - loop.start)
    columns = 400 // stride
    assert (longest.stop - longest.start) * values["tile"][0] > columns - 2 * (dilation + 32)
    assert not any(isinstance(statement, If) for statement in walk(longest.body))
