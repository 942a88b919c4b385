"""The NumPy meaning of tensor expressions, against loops over single elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.schedule.small_kernels import kernel_from, kernel_of
from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels import evaluate as evaluate_module
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.types.dtypes import WIDE, DType
from tunefarm.compiler.types.tensor_type import TensorType

Values: TypeAlias = npt.NDArray[Any]
F32 = DType.F32


def _kernel(builder: KernelBuilder) -> FusedKernel:
    stages = tuple(builder.stages)
    return FusedKernel("test", tuple(builder.inputs), stages, stages[-1].name)


def _run(
    kernel: FusedKernel, inputs: Mapping[str, Values], *, accumulate_double: bool = True
) -> Values:
    return evaluate_kernel(kernel, inputs, accumulate_double=accumulate_double)


def _random(seed: int, *shape: int) -> Values:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


EXTENTS = st.sampled_from([1, 2, 3, 7, 13])


@settings(max_examples=40, deadline=None)
@given(rows=EXTENTS, columns=EXTENTS, inner=EXTENTS, window=EXTENTS)
def test_window_sums_equal_loops(rows: int, columns: int, inner: int, window: int) -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(F32, (rows, inner, columns + 2 * window)))
    weight = builder.input(TensorType(F32, (columns, inner, window)))
    builder.stage(
        "out",
        [("r", rows), ("c", columns)],
        lambda r, c, i, w: mul(data[r, i, add(c, mul(w, integer(2)))], weight[c, i, w]),
        reduce=[("i", inner), ("w", window)],
        combiner="sum",
    )
    x, y = _random(1, *data.shape), _random(2, *weight.shape)
    expected = np.zeros((rows, columns))
    for r, c, i, w in itertools.product(*map(range, (rows, columns, inner, window))):
        expected[r, c] += float(x[r, i, c + 2 * w]) * float(y[c, i, w])
    actual = _run(_kernel(builder), {"in0": x, "in1": y})
    np.testing.assert_allclose(actual, expected.astype("float32"), rtol=1e-6, atol=1e-6)


FACTORS = ("ab", "a", "b", "kab", "kl", "")


@pytest.mark.parametrize("first", FACTORS)
def test_products_of_factors_over_any_axes(first: str) -> None:
    """Three factors, each over some of the axes a, b and the reduced k, l."""
    for others in itertools.product(FACTORS, repeat=2):
        _check_product((first, *others))


def _check_product(used: tuple[str, ...]) -> None:
    extents = {"a": 3, "b": 4, "k": 5, "l": 2}
    builder = KernelBuilder()
    tensors = [
        builder.input(TensorType(DType.F64, tuple(extents[axis] for axis in axes))) for axes in used
    ]

    def body(*indices: Expr) -> Expr:
        named = dict(zip("abkl", indices, strict=True))
        first, second, third = (
            tensor[tuple(named[axis] for axis in axes)]
            for tensor, axes in zip(tensors, used, strict=True)
        )
        return mul(mul(first, second), third)

    builder.stage("out", [("a", 3), ("b", 4)], body, reduce=[("k", 5), ("l", 2)], combiner="sum")
    arrays = {
        tensor.name: np.random.default_rng(i).standard_normal(tensor.shape)
        for i, tensor in enumerate(tensors)
    }
    ones = np.ones((3, 4, 5, 2))
    expected = np.einsum(",".join((*used, "abkl")) + "->ab", *arrays.values(), ones)
    np.testing.assert_allclose(_run(_kernel(builder), arrays), expected, rtol=1e-12)


def _reduction(combiner: str, dtype: DType, *extents: int) -> FusedKernel:
    builder = KernelBuilder()
    data = builder.input(TensorType(dtype, extents))
    builder.stage(
        "out",
        [("a", extents[0])],
        lambda *i: data[i],
        reduce=[(f"r{i}", extent) for i, extent in enumerate(extents[1:])],
        combiner=combiner,
    )
    return _kernel(builder)


@pytest.mark.parametrize("dtype", sorted(WIDE))
def test_every_combiner_of_every_type(dtype: DType) -> None:
    values = np.random.default_rng(0).integers(-100, 100, (7, 3, 5)).astype(dtype.numpy)
    functions = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    if dtype is DType.BOOL:
        functions = {"and": np.logical_and, "or": np.logical_or}
    elif dtype.is_integer:
        functions |= {"and": np.bitwise_and, "or": np.bitwise_or}
    assert set(functions) == {name for name, row in COMBINERS.items() if dtype in row.operands}
    for combiner, function in functions.items():
        actual = _run(_reduction(combiner, dtype, 7, 3, 5), {"in0": values})
        flat = values.reshape(7, 15)
        expected: Values = function.reduce(flat, axis=1, dtype=dtype.numpy)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, strict=True)


@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
def test_chunks_give_the_same_as_the_whole(combiner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, values = _reduction(combiner, DType.F64, 5, 7, 13), np.ones((5, 7, 13)) * 1.001
    whole = _run(kernel, {"in0": values})
    monkeypatch.setattr(evaluate_module, "MAXIMUM_GRID", 4)
    np.testing.assert_allclose(_run(kernel, {"in0": values}), whole, rtol=1e-12)


def test_chunks_of_a_product_and_of_a_pointwise_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = KernelBuilder()
    left = builder.input(TensorType(DType.F64, (7, 13)))
    right = builder.input(TensorType(DType.F64, (13, 5)))
    product = builder.stage(
        "product",
        [("m", 7), ("n", 5)],
        lambda m, n, k: mul(left[m, k], right[k, n]),
        reduce=[("k", 13)],
        combiner="sum",
    )
    builder.stage("out", [("m", 7), ("n", 5)], lambda m, n: unary("neg", product[m, n]))
    x, y = np.random.default_rng(0).random((7, 13)), np.random.default_rng(1).random((13, 5))
    monkeypatch.setattr(evaluate_module, "MAXIMUM_GRID", 3)
    monkeypatch.setattr(evaluate_module, "MAXIMUM_FACTOR", 3)
    actual = _run(_kernel(builder), {"in0": x, "in1": y})
    np.testing.assert_allclose(actual, -(x @ y), rtol=1e-12)


def test_sums_of_f32_are_rounded_once_when_accumulated_in_double() -> None:
    kernel = _reduction("sum", F32, 1, 3)
    values = np.array([[2.0**24, 1.0, 1.0]], "float32")
    assert _run(kernel, {"in0": values})[0] == 2.0**24 + 2
    single = _run(kernel, {"in0": values}, accumulate_double=False)
    assert single.dtype == np.float32
    assert single[0] in (2.0**24, 2.0**24 + 2)


def test_integer_sums_wrap() -> None:
    values = np.full((1, 3), 100, "int8")
    assert _run(_reduction("sum", DType.I8, 1, 3), {"in0": values})[0] == 44


def test_loads_on_the_side_not_taken_may_lie_outside() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(F32, (3,)))

    def body(i: Expr) -> Expr:
        source = sub(i, integer(2))
        inside = all_of(binary("ge", source, integer(0)), binary("lt", source, integer(3)))
        return select(inside, data[source], const(-1, F32))

    builder.stage("out", [("i", 7)], body)
    actual = _run(_kernel(builder), {"in0": np.array([1, 2, 3], "float32")})
    np.testing.assert_array_equal(actual, [-1, -1, 1, 2, 3, -1, -1])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_affine_loads_equal_loops(data: st.DataObject) -> None:
    """Views with any sign of coefficient, shared axes and axes that do not occur."""
    extents = data.draw(st.tuples(EXTENTS, EXTENTS))
    factors = data.draw(
        st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=3)
    )
    offsets = [
        sum(-min(0, f * (e - 1)) for f, e in zip(row, extents, strict=True)) for row in factors
    ]
    shape = tuple(
        1 + offset + sum(max(0, f * (e - 1)) for f, e in zip(row, extents, strict=True))
        for row, offset in zip(factors, offsets, strict=True)
    )
    builder = KernelBuilder()
    source = builder.input(TensorType(F32, shape))

    def body(i: Expr, j: Expr) -> Expr:
        terms = (
            add(add(mul(i, integer(a)), mul(j, integer(b))), integer(offset))
            for (a, b), offset in zip(factors, offsets, strict=True)
        )
        return source[tuple(terms)]

    builder.stage("out", [("i", extents[0]), ("j", extents[1])], body)
    values = _random(3, *shape)
    actual = _run(_kernel(builder), {"in0": values})
    for i, j in np.ndindex(*extents):
        position = tuple(
            a * i + b * j + offset for (a, b), offset in zip(factors, offsets, strict=True)
        )
        assert actual[i, j] == values[position]


def test_scalar_stages_and_scalar_inputs() -> None:
    builder = KernelBuilder()
    data, scale = builder.input(TensorType(F32, (4,))), builder.input(TensorType(F32, ()))
    total = builder.stage("sum", [], lambda r: data[r], reduce=[("r", 4)], combiner="sum")
    builder.stage("out", [], lambda: mul(total[()], scale[()]))
    inputs = {"in0": np.arange(4, dtype="float32"), "in1": np.array(3, "float32")}
    actual = _run(_kernel(builder), inputs)
    assert actual.shape == ()
    assert actual == 18


DIVISIONS = {
    "div": lambda a, b: math.trunc(a / b),
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "fmod": math.fmod,
}


def _pairs() -> Iterator[tuple[int, int]]:
    return itertools.product((-7, -6, -1, 0, 1, 6, 7), (-3, -2, 2, 3))


@pytest.mark.parametrize("op", sorted(DIVISIONS))
@pytest.mark.parametrize("dtype", [DType.I8, DType.I64, F32])
def test_divisions_round_as_documented(op: str, dtype: DType) -> None:
    pairs = np.array(list(_pairs())).astype(dtype.numpy)
    builder = KernelBuilder()
    data = builder.input(TensorType(dtype, pairs.shape))
    builder.stage(
        "out",
        [("i", len(pairs))],
        lambda i: binary(op, data[i, integer(0)], data[i, integer(1)]),
    )
    actual = _run(_kernel(builder), {"in0": pairs})
    true_division = op == "div" and dtype.is_float
    expected = [a / b if true_division else DIVISIONS[op](a, b) for a, b in _pairs()]
    np.testing.assert_allclose(actual, np.array(expected, dtype.numpy), rtol=1e-6)


def test_casts_truncate_and_compare_with_zero() -> None:
    builder = KernelBuilder()
    data = builder.input(TensorType(F32, (4,)))
    builder.stage("out", [("i", 4)], lambda i: cast(DType.I32, data[i]))
    values = np.array([-1.7, -0.2, 0.9, 2.0], "float32")
    np.testing.assert_array_equal(_run(_kernel(builder), {"in0": values}), [-1, 0, 0, 2])
    builder.stage("flags", [("i", 4)], lambda i: cast(DType.BOOL, sub(data[i], const(2, F32))))
    flags = _run(_kernel(builder), {"in0": values})
    np.testing.assert_array_equal(flags, [True, True, True, False], strict=True)


def test_shared_subexpressions_are_evaluated_once() -> None:
    """A chain that doubles its operand 200 times is a tree of 2**200 nodes, shared."""
    builder = KernelBuilder()
    data = builder.input(TensorType(DType.F64, (3,)))

    def body(i: Expr) -> Expr:
        value = data[i]
        for _ in range(200):
            value = mul(add(value, value), const(0.5, DType.F64))
        return value

    builder.stage("out", [("i", 3)], body)
    values = np.array([1.0, -2.5, 7.0])
    np.testing.assert_array_equal(_run(_kernel(builder), {"in0": values}), values)


def test_missing_and_mistyped_inputs_are_refused() -> None:
    kernel = _reduction("sum", F32, 2, 3)
    with pytest.raises(ValueError, match="in0 is missing"):
        _run(kernel, {})
    with pytest.raises(ValueError, match=r"in0 is f32\[2, 3\], not float64\[2, 3\]"):
        _run(kernel, {"in0": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"not float32\[3, 2\]"):
        _run(kernel, {"in0": np.zeros((3, 2), "float32")})


def test_terms_that_a_condition_leaves_out_are_not_even_looked_at() -> None:
    data, weight = (TensorType(DType.F32, shape) for shape in ((1, 2, 3, 3, 4), (4, 5, 1, 1)))
    kernel = kernel_of([data, weight], [("conv", ["x0", "x1"], {"layout": "NCHWc"})], ["x1"])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(buffer.shape).astype(np.float32) for buffer in kernel.inputs)
    padded = np.pad(w[:, :, 0, 0], ((0, 0), (0, 3))).reshape(4, 2, 4)
    expected = np.einsum("nbhwi,obi->nhwo", x, padded)
    x[:, 1, :, :, 1:] = np.nan
    names = [buffer.name for buffer in kernel.inputs]
    found = evaluate_kernel(kernel, dict(zip(names, (x, w), strict=True)))
    np.testing.assert_allclose(found[:, 0].astype(np.float32), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [each for each in DType if each.is_float], ids=str)
def test_elements_of_every_float_are_read_in_another_order(dtype: DType) -> None:
    kernel = kernel_from(f"{dtype}[2,3]; transpose x0 perm=(1,0); cast v0 to=f32")
    values = np.array([[0.5, 1, 2], [4, 1, 0.5]], np.float32)
    (buffer,) = kernel.inputs
    found = _run(kernel, {buffer.name: values.astype(dtype.numpy)})
    np.testing.assert_array_equal(found, values.T)
