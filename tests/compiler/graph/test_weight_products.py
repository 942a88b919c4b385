"""Products with constant quantised weights: which are packed, and that they stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.compiler.frontend.onnx_models import outputs_of
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.test_dot_products import TARGETS
from tests.targets import target_named
from tunefarm.compiler.graph import dead_code, weight_products
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import frozen
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.operators.evaluate_node import node_kernel
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches import tiled_reduction
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


def graph_of(
    weight: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    attributes: Mapping[str, Attribute] = MappingProxyType({}),
    transpose_b: bool = False,
) -> Graph:
    """x of 3 rows times dequantised weights."""
    dtype = DType.from_numpy(scale.dtype)
    inner, columns = weight.shape[::-1] if transpose_b else weight.shape
    constants = {"q": weight, "s": scale} | ({} if zero_point is None else {"z": zero_point})
    constants = {name: array.copy() for name, array in constants.items()}
    for array in constants.values():
        array.flags.writeable = False
    types = {
        name: TensorType(DType.from_numpy(array.dtype), array.shape)
        for name, array in constants.items()
    }
    types |= {"x": TensorType(dtype, (3, inner)), "w": TensorType(dtype, weight.shape)}
    types["y"] = TensorType(dtype, (3, columns))
    to: Mapping[str, Attribute] = {"to": str(dtype), **attributes}
    nodes = (
        Node("dequantize", tuple(constants), "w", MappingProxyType(to)),
        Node("matmul", ("x", "w"), "y", MappingProxyType({"transpose_b": transpose_b})),
    )
    return Graph("g", ("x",), ("y",), nodes, types, constants)


def drawn(seed: int, shape: tuple[int, ...], dtype: DType) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return converted(rng.uniform(0.25, 1, shape), dtype)
    low, high = dtype.limits
    return converted(rng.integers(low, high, shape, endpoint=True), dtype)


def operators(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes if node.operator != "dequantize"]


def assert_same_meaning(before: Graph, after: Graph, relative: float = 2e-6) -> None:
    x = drawn(9, before.types["x"].shape, before.types["x"].dtype)
    (expected,), (got,) = (outputs_of(graph, {"x": x}) for graph in (before, after))
    assert got.dtype == expected.dtype
    largest = float(np.abs(expected.astype(np.float64)).max())
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()
    assert error <= relative * largest


@pytest.mark.parametrize(
    ("rows", "dtype", "packed"),
    [(16, DType.I8, False), (16, DType.U8, False), (15, DType.I8, True), (16, DType.I4, True)],
)
def test_bytes_that_many_rows_read_become_halves_where_products_are_of_halves(
    rows: int, dtype: DType, packed: bool
) -> None:
    graph = graph_of(drawn(1, (320, 64), dtype), drawn(2, (1, 64), DType.F32))
    shapes = {"x": (rows, 320), "y": (rows, 64)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    graph = replace(graph, types={**graph.types, **types})
    assert operators(weight_products.run(graph)) == ["weight_product"]
    found = weight_products.run(graph, halves=Numerics.of("bf16"))
    assert operators(found) == ["weight_product" if packed else "matmul"]
    apart = replace(Numerics.of("bf16"), contractions=((graph.nodes[1].source, DType.F32),))
    assert operators(weight_products.run(graph, halves=apart)) == ["weight_product"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    "dtype", [DType.I2, DType.U2, DType.I4, DType.U4, DType.I8, DType.U8], ids=str
)
def test_blocks_of_weights_are_packed(dtype: DType, zero: bool, turned: bool) -> None:
    shape, blocks, axis = (320, 64), (10, 64), 0
    if turned:
        shape, blocks, axis = shape[::-1], blocks[::-1], 1
    scale, zero_point = drawn(1, blocks, DType.F32), drawn(2, blocks, dtype) if zero else None
    attributes = {"axis": axis, "block": 32}
    before = graph_of(
        drawn(0, shape, dtype), scale, zero_point, attributes=attributes, transpose_b=turned
    )
    after = weight_products.run(before)
    assert operators(after) == ["weight_product"]
    product = after.nodes[-1]
    assert after.constants[product.inputs[1]].nbytes == 320 * 64 * dtype.bits // 8
    assert_same_meaning(before, after)


@pytest.mark.parametrize("form", [(), (64,), (1, 64)], ids=str)
def test_a_scale_for_each_column_or_for_all_is_one_block(form: tuple[int, ...]) -> None:
    before = graph_of(drawn(0, (301, 64), DType.I8), drawn(1, form, DType.F32))
    after = weight_products.run(before)
    assert operators(after) == ["pad", "weight_product"]
    assert_same_meaning(before, after)


def test_data_is_padded_where_the_last_block_is_not_whole() -> None:
    scale, zero = drawn(1, (5, 64), DType.F32), drawn(2, (5, 64), DType.U4)
    before = graph_of(
        drawn(0, (270, 64), DType.U4), scale, zero, attributes={"axis": 0, "block": 64}
    )
    after = weight_products.run(before)
    assert operators(after) == ["pad", "weight_product"]
    assert_same_meaning(before, after)


def test_a_transpose_of_the_weights_is_part_of_the_packing() -> None:
    straight = graph_of(drawn(0, (64, 256), DType.I4), drawn(1, (64, 8), DType.F32))
    dequantize = Node(
        "dequantize", ("q", "s"), "w", MappingProxyType({"to": "f32", "axis": 1, "block": 32})
    )
    nodes = (
        dequantize,
        Node("transpose", ("w",), "t", MappingProxyType({"perm": (1, 0)})),
        Node("matmul", ("x", "t"), "y"),
    )
    types = {
        **straight.types,
        "t": TensorType(DType.F32, (256, 64)),
        "x": TensorType(DType.F32, (3, 256)),
        "y": TensorType(DType.F32, (3, 64)),
    }
    before = replace(straight, nodes=nodes, types=types)
    after = weight_products.run(before)
    assert operators(after)[-1] == "weight_product"
    assert_same_meaning(before, after)


def blocks_as_an_axis(maker: GraphMaker) -> str:
    """[K / 32, 32, N] times [K / 32, 1, N], made a matrix."""
    stored = maker.constant(drawn(0, (8, 32, 64), DType.U4))
    scale, zero = (drawn(1, (8, 1, 64), DType.F32), drawn(2, (8, 1, 64), DType.U4))
    weights = maker.node(
        "dequantize", stored, maker.constant(scale), maker.constant(zero), to="f32"
    )
    return maker.node("reshape", weights, shape=(256, 64))


def turned_blocks(maker: GraphMaker) -> str:
    """[N, K / 32, 32] times [N, K / 32, 1], made a matrix and turned."""
    stored = maker.constant(drawn(0, (64, 8, 32), DType.I8))
    scale = maker.constant(drawn(1, (64, 8, 1), DType.F32))
    weights = maker.node("dequantize", stored, scale, to="f32")
    matrix = maker.node("reshape", weights, shape=(64, 256))
    return maker.node("transpose", matrix, perm=(1, 0))


def moved_integers(maker: GraphMaker) -> str:
    stored = maker.constant(drawn(0, (64, 8, 32), DType.I8))
    turned = maker.node("transpose", stored, perm=(1, 2, 0))
    matrix = maker.node("reshape", turned, shape=(256, 64))
    return maker.node("dequantize", matrix, maker.constant(drawn(1, (64,), DType.F32)), to="f32")


@pytest.mark.parametrize("block", [32, 0])
@pytest.mark.parametrize("spelling", [blocks_as_an_axis, turned_blocks, moved_integers])
def test_weights_may_be_moved_before_they_are_multiplied(
    spelling: Callable[[GraphMaker], str], block: int
) -> None:
    maker = GraphMaker()
    weights = spelling(maker)
    if not block:  # the same numbers for all
        maker.constants |= {
            name: frozen(np.full_like(array, array.reshape(-1)[0]))
            for name, array in maker.constants.items()
            if name != "c0"
        }
    before = maker.graph(maker.node("matmul", maker.input(3, 256), weights))
    after = dead_code.run(weight_products.run(before))
    assert operators(after) == ["weight_product"]
    whole = not block or spelling is moved_integers
    assert after.nodes[-1].attributes["block"] == (256 if whole else 32)
    (expected,), (got,) = (
        outputs_of(graph, {"x0": drawn(9, (3, 256), DType.F32)}) for graph in (before, after)
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("shape", "scale", "attributes"),
    [
        ((256, 64), (256, 1), {}),  # for each term
        ((256, 64), (256, 2), {"axis": 1, "block": 32}),
        ((256, 64), (86, 64), {"axis": 0, "block": 3}),  # not in whole words
        ((64, 64), (), {}),  # few
    ],
)
def test_other_weights_stay_dequantised(
    shape: tuple[int, int], scale: tuple[int, ...], attributes: dict[str, int]
) -> None:
    before = graph_of(drawn(0, shape, DType.I4), drawn(1, scale, DType.F32), attributes=attributes)
    assert operators(weight_products.run(before)) == ["matmul"]


def test_weights_of_16_bits_are_rounded_where_that_is_asked_for() -> None:
    before = graph_of(drawn(0, (256, 64), DType.I4), drawn(1, (64,), DType.F16))
    assert operators(weight_products.run(before, rounds_weights=True)) == ["matmul"]
    after = weight_products.run(before)
    assert operators(after) == ["weight_product"]
    assert_same_meaning(before, after, relative=4 * DType.F16.epsilon)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_schedule_unpacks_the_weights(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from((2, 4, 8)), "bits")
    block = 32 // bits * data.draw(st.integers(1, 4), "words of a block")
    inner = block * data.draw(st.sampled_from((1, 2, 3, 7)), "blocks")
    columns = data.draw(st.sampled_from((1, 5, 16, 17, 64, 131)), "columns")
    rows = data.draw(st.sampled_from((1, 2, 7, 13, 40)), "rows")
    zero = data.draw(st.booleans(), "zero point")
    float_type = data.draw(st.sampled_from((DType.F32, DType.F16)), "data")
    parameters = (inner // block, columns)
    types = [
        TensorType(float_type, (rows, inner)),
        TensorType(DType.I32, (inner * bits // 32, columns)),
        TensorType(float_type, parameters),
        *([TensorType(DType.I8, parameters)] if zero else []),
    ]
    names = tuple(f"in{number}" for number in range(len(types)))
    node = Node("weight_product", names, "y", MappingProxyType({"bits": bits, "block": block}))
    kernel = node_kernel(node, tuple(types), (False, *(True,) * (len(types) - 1)))
    inputs = {
        name: drawn(number, type.shape, type.dtype)
        for number, (name, type) in enumerate(zip(names, types, strict=True))
    }
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), "target")]
    space = schedule_space(kernel, target)
    candidate = space.candidate(data.draw(st.integers(0, space.size - 1), "candidate"))
    note(f"{candidate.sketch}: {space.choices(candidate)}")
    got = run_guarded(kernel, space.schedule(candidate), inputs, target).output
    expected = evaluate_kernel(kernel, inputs).astype(np.float64)
    epsilon = float_type.epsilon
    tolerance = 16 * epsilon * max(1.0, np.abs(expected).max()) * (1 + inner**0.5 * 0.1)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rows", "name"), [(1, "digits"), (2, "tiled"), (64, "tiled_unpacked")])
@pytest.mark.parametrize("columns", [160, 161])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_share_weights_that_are_unpacked_once(
    rows: int, name: str, threads: int, columns: int
) -> None:
    types = (
        TensorType(DType.F32, (rows, 384)),
        TensorType(DType.I32, (96, columns)),
        TensorType(DType.F32, (1, columns)),
    )
    node = Node("weight_product", ("a", "b", "c"), "y", MappingProxyType({"bits": 8, "block": 384}))
    kernel = node_kernel(node, types, (False, True, True))
    space = schedule_space(kernel, TARGETS["avx2"], threads)
    assert space.sketches[0].name == name
    names = [sketch.name for sketch in space.sketches]
    assert ("tiled_unpacked" in names) == (rows >= tiled_reduction.FEWEST_ROWS)


def digit_sums(columns: int, inner: int, block: int, bits: int = 4) -> tuple[FusedKernel, Schedule]:
    """The product of 3 rows by split-integer dot products, on this CPU."""
    types = (
        TensorType(DType.F32, (3, inner)),
        TensorType(DType.I32, (inner * bits // 32, columns)),
        TensorType(DType.F32, (inner // block, columns)),
    )
    attributes = MappingProxyType({"bits": bits, "block": block})
    node = Node("weight_product", ("in0", "in1", "in2"), "y", attributes)
    kernel = node_kernel(node, types, (False, True, True))
    sketch = schedule_space(kernel, host_target()).sketch("digits")
    choices = zip((choice.name for choice in sketch.choices), sketch.default, strict=True)
    return kernel, sketch.build(dict(choices))


@pytest.mark.parametrize("size", [0.0, 1e-33, 1e-30, 1.0, 1e30])
def test_sums_of_digits_keep_what_sums_of_floats_do(size: float) -> None:
    kernel, schedule = digit_sums(64, 256, 32)
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((3, 256)) * size).astype(np.float32)
    inputs = {
        "in0": x,
        "in1": rng.integers(-(1 << 31), 1 << 31, (32, 64)).astype(np.int32),
        "in2": rng.uniform(0.5, 1, (8, 64)).astype(np.float32),
    }
    got = run_guarded(kernel, schedule, inputs, host_target()).output.astype(np.float64)
    expected = evaluate_kernel(kernel, inputs).astype(np.float64)
    limit = 4e-6 * np.abs(expected).max() + 256 * 2.0**-126  # where units are the least float
    np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


@pytest.mark.parametrize(("bits", "block"), [(2, 128), (4, 32), (4, 128), (8, 64)])
def test_sums_of_the_largest_digits_and_weights_are_exact(bits: int, block: int) -> None:
    """Sums of 16 bits are added up as long as they cannot overflow, and no longer."""
    kernel, schedule = digit_sums(64, 256, block, bits)
    x = np.full((3, 256), -(128 * 257) / 2**22, np.float32)  # two digits of -128
    x[:, ::32] = 1.0
    inputs = {
        "in0": x,
        "in1": np.full((256 * bits // 32, 64), -1, np.int32),
        "in2": np.ones((256 // block, 64), np.float32),
    }
    got = run_guarded(kernel, schedule, inputs, host_target()).output.astype(np.float64)
    expected = float(x[0].astype(np.float64).sum()) * ((1 << bits - 1) - 1)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_with_data_that_is_not_finite_has_no_sums(value: float) -> None:
    kernel, schedule = digit_sums(64, 64, 32)
    rng = np.random.default_rng(3)
    inputs = {
        "in0": rng.standard_normal((3, 64)).astype(np.float32),
        "in1": rng.integers(-(1 << 31), 1 << 31, (8, 64)).astype(np.int32),
        "in2": rng.uniform(0.5, 1, (2, 64)).astype(np.float32),
    }
    inputs["in0"][1, 40] = value
    got = run_guarded(kernel, schedule, inputs, host_target()).output
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize(
    ("target", "bits", "leads"),
    [
        ("host", 4, "avx2"),
        ("host", 8, "vnni"),
        ("avx2", 4, "avx2"),
        ("avx2", 8, ""),
        ("narrow", 4, ""),
    ],
)
def test_sums_of_digits_lead_where_bytes_are_multiplied(target: str, bits: int, leads: str) -> None:
    if target not in TARGETS:
        pytest.skip(f"this CPU has no {target}")
    kernel, _ = digit_sums(64, 256, 32, bits)
    found = TARGETS[target]
    expected = bool(leads) and any(leads in feature for feature in found.features)
    assert (schedule_space(kernel, found).sketches[0].name == "digits") == expected


@pytest.mark.parametrize(
    ("names", "rows", "bits", "block", "leads", "leads_if_dynamic"),
    [
        ("sapphirerapids znver5", 16, 4, 32, True, True),
        ("sapphirerapids znver5", 64, 4, 32, False, True),
        ("sapphirerapids znver5", 64, 4, 128, True, True),
        ("sapphirerapids znver5", 64, 8, 896, True, True),
        ("x86-64-v3 znver3", 8, 4, 32, True, True),
        ("x86-64-v3 znver3", 12, 4, 32, False, False),
        ("x86-64-v3 znver3", 8, 8, 896, False, False),
    ],
)
def test_sums_of_digits_lead_for_many_rows_where_chunks_are_long(
    names: str, rows: int, bits: int, block: int, leads: bool, leads_if_dynamic: bool
) -> None:
    """What scales and adds up a chunk's sums is a third of the work in chunks of 32 terms.

    Where rows are dynamic and an instruction adds products, few of them are much faster. With AVX2
    alone the bound decides.
    """
    types = (
        TensorType(DType.F32, (rows, 896)),
        TensorType(DType.I32, (896 * bits // 32, 896)),
        TensorType(DType.F32, (896 // block, 896)),
    )
    attributes = MappingProxyType({"bits": bits, "block": block})
    node = Node("weight_product", ("in0", "in1", "in2"), "y", attributes)
    kernel = node_kernel(node, types, (False, True, True))
    sizes = Buffer("sizes", DType.I64, (1,))
    limit = ValidExtent(896, rows, "sizes", 0)
    dynamic = replace(kernel, inputs=(*kernel.inputs, sizes), limits=(limit,))
    for target in map(target_named, names.split()):
        for made, expected in ((kernel, leads), (dynamic, leads_if_dynamic)):
            first = schedule_space(made, target).sketches[0].name
            assert (first == "digits") == expected


def test_strict_numerics_admit_no_sums_of_digits() -> None:
    kernel, _ = digit_sums(64, 64, 32)
    spaces = [schedule_space(kernel, host_target(), 1, name) for name in ("default", "strict")]
    assert ["digits" in [sketch.name for sketch in space.sketches] for space in spaces] == [
        True,
        False,
    ]
