"""How many windows pools have where sizes are dynamic."""

from __future__ import annotations

import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.dims import size_of
from tunefarm.compiler.types.sizes import Dimension, Symbol, value_of

LEAST = 8
LENGTH = Symbol.of("length", LEAST, 24)


def windows_of(
    kernel: int, stride: int, begin: int, end: int, *, rounded: bool = True, least: int = LEAST
) -> Dimension:
    """The number of windows of a pool over `length` elements, `rounded` up or down."""
    node = helper.make_node(
        "MaxPool",
        ["x"],
        ["y"],
        kernel_shape=[kernel],
        strides=[stride],
        pads=[begin, end],
        ceil_mode=int(rounded),
    )
    proto = model([node], [tensor("x", [1, 1, "length"])], opset=18)
    graph = import_model_proto(proto, {"length": (f"{least}..24",)})
    assert graph.signature is not None
    (port,) = graph.signature.outputs
    assert port.padded is not None
    return size_of(port.padded[2])


@pytest.mark.parametrize(
    ("kernel", "stride", "pads"),
    [
        (3, 2, (0, 0)),
        (2, 2, (0, 0)),
        (3, 2, (1, 1)),
        (2, 3, (0, 0)),
        (2, 3, (1, 1)),
        (3, 3, (1, 2)),
    ],
)
def test_windows_rounded_up_begin_within_the_data(
    kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    found = windows_of(kernel, stride, *pads)
    for length in range(LEAST, 25):
        padded = length + sum(pads)
        starts = range(0, padded - kernel + stride, stride)
        expected = sum(start < length + pads[0] for start in starts)
        assert value_of(found, {"length": length}) == expected


def test_windows_without_gaps_are_counted_by_one_fraction() -> None:
    assert windows_of(3, 2, 0, 0) == LENGTH // 2
    assert windows_of(2, 2, 0, 0) == (LENGTH + 1) // 2


def test_a_window_of_which_less_than_a_stride_is_missing_is_cut() -> None:
    found = windows_of(2, 2, 0, 0, rounded=False, least=1)
    assert [value_of(found, {"length": length}) for length in (1, 2, 3, 4)] == [1, 1, 1, 2]


def test_windows_of_which_a_stride_is_missing_are_refused() -> None:
    with pytest.raises(ImportModelError, match="a window of 3 may not fit"):
        windows_of(3, 2, 0, 0, rounded=False, least=1)
