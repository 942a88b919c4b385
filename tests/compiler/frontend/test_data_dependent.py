"""Results as large as their data says: NonZero, Compress, Unique, TopK, and what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper, parser

from tests.compiler.frontend.onnx_models import integers, model, node, tensor
from tests.onnxruntime_session import assert_agrees, one_thread
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.types.extents import Shapes

Values = npt.NDArray[np.generic]
RNG = np.random.default_rng(8)
FEW = [
    RNG.integers(0, 3, (3, 5)).astype(np.float32),
    np.zeros((3, 5), np.float32),
    np.ones((3, 5), np.float32),
    RNG.permutation(15).reshape(3, 5).astype(np.float32),
]
CONDITIONS = [np.array(c) for c in ([True] * 4, [False] * 4, [True, False, False, True])]


def check(text: str, calls: Sequence[Mapping[str, Values]], shapes: Shapes | None = None) -> None:
    """Outputs of machine code are onnxruntime's, with their shapes, for all of these arguments."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')
    executable = compiler.build(import_model_proto(proto, shapes))
    assert_agrees(executable.run, proto, *calls, rtol=0, atol=0, options=one_thread())


def test_nonzero() -> None:
    check("g (float[3,5] x) => (int64[2,n] y) { y = NonZero(x) }", [{"x": x} for x in FEW])


@pytest.mark.parametrize("axis", ["", "<axis=1>"])
def test_compress(axis: str) -> None:
    shape = "float[3,m]" if axis else "float[m]"
    check(
        f"g (float[3,5] x, bool[4] c) => ({shape} y) {{ y = Compress{axis}(x, c) }}",
        [{"x": FEW[3], "c": condition} for condition in CONDITIONS],
    )


@pytest.mark.parametrize("sorts", [0, 1])
@pytest.mark.parametrize("axis", ["", ", axis=0", ", axis=-1"])
def test_unique(sorts: int, axis: str) -> None:
    shape = "n,m" if axis else "n"
    check(
        f"g (float[3,5] x) => (float[{shape}] y, int64[k] i, int64[l] v, int64[k] c)"
        f"{{ y, i, v, c = Unique<sorted={sorts}{axis}>(x) }}",
        [{"x": x} for x in FEW],
    )


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k_of_a_computed_number(largest: int, axis: int) -> None:
    check(
        "g (float[3,5] x, int64[1] k) => (float[a,b] y, int64[a,b] i)"
        f"{{ y, i = TopK<largest={largest}, axis={axis}>(x, k) }}",
        [{"x": x, "k": np.array([k])} for x in FEW for k in (1, 3)],
    )


def test_top_k_of_a_known_number_has_a_known_shape() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[3,5] x) => (float[3,2] y, int64[3,2] i)'
        "{ k = Constant<value_ints=[2]>() y, i = TopK(x, k) }"
    )
    graph = import_model_proto(proto)
    assert graph.is_fixed
    x = FEW[3].copy()
    x[0, 2] = np.inf
    found = compiler.build(graph).run({"x": x})["i"]
    np.testing.assert_array_equal(found, np.argsort(-x, 1, kind="stable")[:, :2])


def test_not_a_number_is_one_more_number_behind_all_others() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[5] x) => (float[5] y, int64[5] i)'
        "{ k = Constant<value_ints=[5]>() y, i = TopK<largest=0>(x, k) }"
    )
    x = np.array([np.nan, 1, np.nan, -np.inf, 0], np.float32)
    found = compiler.build(import_model_proto(proto)).run({"x": x})
    np.testing.assert_array_equal(found["i"], [3, 4, 1, 0, 2])


def test_padding_of_such_a_result_is_no_part_of_what_follows() -> None:
    check(
        "g (float[3,5] x) => (float[n] y, float s, float[n] m) {"
        "  i = NonZero(x) t = Transpose(i) y = GatherND(x, t)"
        "  s = ReduceSum<keepdims=0>(y) z = Softmax(y) m = Mul(z, y) }",
        [{"x": np.full((3, 5), 2, np.float32)}, {"x": FEW[1]}, {"x": np.eye(3, 5, 1, np.float32)}],
    )


@pytest.mark.parametrize(
    ("output", "nodes"),
    [
        ("int64[2,n] y", "y = NonZero(x)"),
        ("float[n] y", "y, i, v, c = Unique(x)"),
        ("int64[m] v", "y, i, v, c = Unique<axis=0>(x)"),
        ("float[b,2] y", "k = Constant<value_ints=[2]>() y, i = TopK(x, k)"),
    ],
)
def test_data_whose_own_size_is_known_at_run_time(output: str, nodes: str) -> None:
    check(
        f"g (float[b,5] x) => ({output}) {{ {nodes} }}",
        [{"x": RNG.integers(0, 3, (rows, 5)).astype(np.float32)} for rows in (1, 3, 6)],
        {"x": ("b:1..6", 5)},
    )


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("most", [3, 31, 100, 700])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u8", "u1"])
def test_the_first_of_long_rows(dtype: str, most: int, largest: int) -> None:
    """Rows that are too long to look at all pairs; ties, both zeros, infinities and NaN.

    All of a row are searched for 100, those of blocks of 16 and 4 for 3 and 31, and sorted for 700.
    """
    rng = np.random.default_rng(largest)
    kind = np.dtype(dtype)
    data: Any = rng.integers(0, 100, (3, 700)).astype(kind)
    if kind.kind != "u":
        data -= kind.type(50)
    if kind.kind == "f":
        data[:, ::7] *= kind.type(-0.0)
        data[0, [3, 300]], data[1, 5], data[1, 9], data[2] = np.nan, np.inf, -np.inf, -np.inf
    else:
        ends = np.iinfo(kind)
        data[0, 5:9], data[1, 650:], data[2] = ends.min, ends.max, ends.min
    number = helper.np_dtype_to_tensor_dtype(kind)
    top = node("TopK", "x k", "y i", largest=largest)
    proto = model([top], [tensor("x", [3, 700], number)], ["y", "i"], {"k": integers(most)})
    results = compiler.build(import_model_proto(proto)).run({"x": data})
    wide = data.astype(np.longdouble)
    wide = np.where(np.isnan(wide), np.longdouble(np.inf), wide)  # behind it: NaN's flag counts
    order = [
        np.lexsort((np.arange(700), -row if largest else row, nan != bool(largest)))[:most]
        for row, nan in zip(wide, np.isnan(data.astype(np.float64)), strict=True)
    ]
    np.testing.assert_array_equal(results["i"], order)
    np.testing.assert_array_equal(results["y"], np.take_along_axis(data, np.array(order), 1))


def test_the_first_of_long_rows_of_an_open_number() -> None:
    text = (
        "g (float[B,1003] x) => (float[B,5] y, int64[B,5] i) "
        "{ k = Constant<value_ints=[5]>() y, i = TopK(x, k) }"
    )
    rows = RNG.integers(0, 50, (5, 1003)).astype(np.float32)
    check(text, [{"x": rows[:batch].copy()} for batch in (5, 1, 3)], {"B": ("1..5",)})


def test_the_first_of_rows_of_open_length() -> None:
    text = (
        "g (float[2,N] x) => (float[2,M] y, int64[2,M] i) "
        "{ k = Constant<value_ints=[300]>() y, i = TopK(x, k) }"
    )
    rows = RNG.integers(0, 50, (2, 900)).astype(np.float32)
    calls = [{"x": rows[:, :size].copy()} for size in (900, 300, 641, 512)]
    check(text, calls, {"N": ("300..900",)})


def test_sorted_rows_of_open_number_and_length() -> None:
    text = (
        "g (float[B,N] x) => (float[B,N] y, int64[B,N] i) "
        "{ k = Shape<start=1>(x) y, i = TopK(x, k) }"
    )
    rows = RNG.integers(0, 50, (3, 900)).astype(np.float32)
    calls = [{"x": rows[:b, :n].copy()} for b, n in ((3, 900), (1, 1), (2, 641), (3, 7))]
    check(text, calls, {"B": ("1..3",), "N": ("1..900",)})


def test_a_row_of_many_elements_is_sorted_by_single_bits() -> None:
    """The counts of digits of two bits would not fit their fields."""
    row = RNG.integers(0, 9, (1, 1 << 16)).astype(np.uint8)
    data = tensor("x", row.shape, helper.np_dtype_to_tensor_dtype(row.dtype))
    top = node("TopK", "x k", "y i", largest=0)
    proto = model([top], [data], ["y", "i"], {"k": integers(row.size)})
    found = compiler.build(import_model_proto(proto)).run({"x": row})["i"]
    np.testing.assert_array_equal(found, np.argsort(row, axis=1, kind="stable"))


def test_a_range_that_data_ends_has_memory_for_as_many_as_loops_collect() -> None:
    """As speech synthesis has it: frames are counted by the durations of letters."""
    text = (
        "g (int64[N] d) => (bool[T,N] y) {"
        "  all = ReduceSum<keepdims=0>(d) one = Constant<value_int=1>()"
        "  zero = Constant<value_int=0>()"
        "  t = Range(zero, all, one) at = Constant<value_ints=[1]>() u = Unsqueeze(t, at)"
        "  ends = CumSum(d, zero) y = Less(u, ends) }"
    )
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')
    graph = import_model_proto(proto, {"N": ("1..5",)}, limits=Limits(loop_rows=12))
    executable = compiler.build(graph)
    for durations in ([3, 0, 4], [1], [12, 0, 0, 0, 0]):
        d = np.array(durations)
        wanted = np.arange(d.sum())[:, None] < np.cumsum(d)
        np.testing.assert_array_equal(executable.run({"d": d})["y"], wanted)
    for durations in ([9, 4], [0, 0]):
        with pytest.raises(InputError, match=r"1 to 12 elements \(limits.loop_rows\)"):
            executable.run({"d": np.array(durations)})


def test_rows_that_data_chooses_may_be_none_of_those_that_are_there() -> None:
    text = (
        "g (float[N] x, float[N,3] z) => (float[M,3] y) "
        "{ i = NonZero(x) t = Squeeze(i) y = Gather(z, t) }"
    )
    x, z = np.zeros((2, 5), np.float32), np.ones((5, 3), np.float32)
    x[1, 2:4] = 1
    check(text, [{"x": row, "z": z} for row in x], {"N": ("1..9",)})


@pytest.mark.parametrize(("few", "most"), [(3, 90), (20, 24)])
def test_the_first_of_open_rows_of_open_length(few: int, most: int) -> None:
    """Of short rows by all pairs, of long ones by a search; equal elements stay in order."""
    text = (
        "g (float[B,C,N] x) => (float[B,M,N] y, int64[B,M,N] i) "
        f"{{ k = Constant<value_ints=[{few}]>() y, i = TopK<axis=1, largest=0>(x, k) }}"
    )
    x = RNG.integers(0, 20, (3, most, 41)).astype(np.float32)
    sizes = ((3, most, 41), (1, few, 1), (2, 21, 7))
    calls = [{"x": x[:batch, :rows, :length].copy()} for batch, rows, length in sizes]
    check(text, calls, {"B": ("1..3",), "C": (f"{few}..{most}",), "N": ("1..41",)})


def test_a_number_of_results_that_is_computed_of_sizes_keeps_its_bound() -> None:
    """As detectors have it: the least of 4 and of how many there are."""
    text = (
        "g (float[N] x) => (float[M] y, int64[M] i) {"
        "  n = Shape(x) four = Constant<value_ints=[4]>() both = Concat<axis=0>(four, n)"
        "  k = ReduceMin<keepdims=1>(both) y, i = TopK(x, k) }"
    )
    rows = RNG.integers(0, 50, 900).astype(np.float32)
    check(text, [{"x": rows[:size].copy()} for size in (900, 3, 4, 1)], {"N": ("1..900",)})
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')
    graph = import_model_proto(proto, {"N": ("1..900",)})
    assert graph.types["y"].shape == (4,)


def test_too_few_elements_for_top_k_say_to_raise_sizes() -> None:
    nodes = [node("Reshape", "x [1,-1]", "flat"), node("TopK", "flat [300]", "y i")]
    proto = model(nodes, [tensor("x", [1, "h", "w"])])
    with pytest.raises(ShapeError, match=r"300 results of an axis of 100 \(.*larger sizes"):
        import_model_proto(proto, {"h": "2..10", "w": "2..10"})
    executable = compiler.build(import_model_proto(proto, {"h": "2..40", "w": "2..40"}))
    with pytest.raises(InputError, match="a range of sizes a larger minimum"):
        executable.run({"x": np.zeros((1, 4, 5), np.float32)})
