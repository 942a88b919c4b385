"""How many windows pools have where sizes are dynamic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.padded_shape import size_of
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


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("stride", [2, 3])
def test_as_many_windows_at_all_sizes_may_hang_over_at_some(
    operator: str, stride: int, tmp_path: Path
) -> None:
    """Of 13 rows the last window hangs over, of 14 it does not."""
    node = helper.make_node(
        operator, ["x"], ["y"], kernel_shape=[2, 1], strides=[stride, 1], ceil_mode=1
    )
    proto = model([node], [tensor("x", [1, 6, "rows", 7])], opset=22)
    path = tmp_path / "pool.onnx"
    onnx.save(proto, path)
    executable = compiler.build(path, shapes={"rows": ("13..14",)})
    session = onnxruntime.InferenceSession(path)
    for rows in (14, 13):  # what the first run leaves is no result of the second
        x = np.random.default_rng(rows).standard_normal((1, 6, rows, 7)).astype(np.float32)
        found: Any = executable.run({"x": x})["y"]
        expected: Any = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
