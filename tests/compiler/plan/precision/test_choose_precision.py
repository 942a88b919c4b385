"""Which contractions multiply in a narrow type, what is stored in it, and where the casts are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    conv,
    evaluate_graph,
    evaluate_program,
    extracted,
    kernel_names,
    random_inputs,
)
from tests.compiler.graph.test_random_graphs import IMAGE_KINDS, KINDS, random_graph
from tests.compiler.plan.test_optimise_zoo import SIZES
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.plan.precision import choose_precision
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import BF16_NUMERICS, DEFAULT_NUMERICS, F16_NUMERICS, Numerics
from tunefarm.compiler.types.sizes import Symbol
from tunefarm.compiler.types.tensor_type import TensorType

BF16 = DType.BF16
ERROR = 0.02  # of the largest element, in a whole network


def narrowed(graph: Graph, numerics: Numerics = BF16_NUMERICS) -> Graph:
    result = choose_precision.run(graph, ResourceBudget(), numerics)
    assert_same_meaning(graph, result, ERROR)
    assert structurally_equal(choose_precision.run(result, ResourceBudget(), numerics), result)
    return result


def contractions(graph: Graph) -> list[str]:
    """Of each contraction the type of its factors, in order."""
    return [
        graph.types[node.inputs[0]].dtype.value
        for node in graph.nodes
        if node.operator in ("conv", "matmul")
    ]


def dense(maker: GraphMaker, x: str, columns: int) -> str:
    rows = maker.types[x].shape[-1]
    return maker.node("matmul", x, maker.weights(rows, columns, scale=1 / rows))


def test_factors_are_narrow_and_sums_are_not() -> None:
    maker = GraphMaker()
    graph = narrowed(maker.graph(conv(maker, maker.node("relu", maker.input(1, 8, 6, 6)), 8)))
    *_, node = graph.nodes
    data, weight, bias = (graph.types[name].dtype for name in node.inputs)
    assert (data, weight, bias) == (BF16, BF16, DType.F32)
    assert node.attributes["accumulator"] == "f32"
    assert graph.types[node.output].dtype is DType.F32


def test_inside_a_kernel_nothing_is_rounded_and_what_is_stored_between_two_is_narrow() -> None:
    maker = GraphMaker()
    y = maker.node("relu", conv(maker, maker.node("tanh", maker.input(1, 8, 6, 6)), 8))
    z = maker.node("add", conv(maker, y, 8), y)
    graph = narrowed(maker.graph(conv(maker, maker.node("relu", z), 8)))
    names = kernel_names(extracted(graph))
    assert names == ["tanh_cast", "conv_relu_cast", "conv_cast_add_relu_cast", "conv"]


def test_what_lies_behind_the_last_contraction_is_not_stored_narrow() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.node("relu", maker.input(1, 8, 6, 6)), 8)
    pooled = maker.node("reduce_mean", maker.node("relu", y), axes=(2, 3))
    graph = narrowed(maker.graph(maker.node("tanh", pooled)))
    behind = [graph.types[node.output].dtype for node in graph.nodes[2:]]
    assert behind == [DType.F32] * 4


def test_norms_and_softmax_read_f32_and_their_result_is_cast_in_their_kernel() -> None:
    maker = GraphMaker()
    y = dense(maker, maker.node("tanh", maker.input(4, 16)), 16)
    scores = maker.node("softmax", maker.node("add", y, maker.input(4, 16)), axis=1)
    scale, shift = maker.weights(16), maker.weights(16)
    norm = maker.node("layer_norm", dense(maker, scores, 16), scale, shift, axis=1)
    graph = narrowed(maker.graph(dense(maker, norm, 8)))
    assert contractions(graph) == ["bf16", "bf16", "bf16"]
    names = kernel_names(extracted(graph))
    assert names == [
        "tanh_cast",
        "matmul_add",
        "softmax_cast",
        "matmul",
        "layer_norm_cast",
        "matmul",
    ]


def test_moments_of_a_norm_between_contractions_stay_exact() -> None:
    """As Flax computes the variance: mean(x^2) - mean(x)^2, which cancel."""
    maker = GraphMaker()
    x = maker.node("add", dense(maker, maker.input(4, 16), 16), maker.scalar(8.0))
    squares = maker.node("mul", x, x)
    mean, second = (
        maker.node("reduce_mean", value, axes=(1,), keepdims=True) for value in (x, squares)
    )
    variance = maker.node("sub", second, maker.node("mul", mean, mean))
    root = maker.node("sqrt", maker.node("add", variance, maker.scalar(1e-3)))
    norm = maker.node("div", maker.node("sub", x, mean), root)
    graph = narrowed(maker.graph(dense(maker, norm, 8)))
    assert contractions(graph) == ["bf16", "bf16"]
    casts = [node for node in graph.nodes if node.operator == "cast"]
    assert all(graph.types[node.inputs[0]].size == 4 * 16 for node in casts)


def test_moves_and_pools_between_contractions_do_not_leave_the_narrow_type() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.node("relu", maker.input(1, 8, 8, 8)), 8)
    pools = [
        maker.node(pool, y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), shape=(4, 4))
        for pool in ("max_pool", "average_pool")
    ]
    joined = maker.node("concat", *pools, axis=1)
    flat = maker.node("reshape", joined, shape=(1, 16 * 16))
    graph = narrowed(maker.graph(dense(maker, flat, 8)))
    moved = {
        node.operator: graph.types[node.output].dtype
        for node in graph.nodes
        if node.operator in ("max_pool", "average_pool", "concat", "reshape")
    }
    assert moved == dict.fromkeys(("max_pool", "average_pool", "concat", "reshape"), BF16)


def test_weighted_sums_of_neighbours_are_computed_in_f32() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.node("relu", maker.input(1, 8, 4, 4)), 8)
    weights = maker.constant(np.full((2, 8), 0.5, np.float32))
    grown = maker.node(
        "resample", y, weights, axis=2, size=8, divisor=2, offsets=(0, 1), weighted=True
    )
    graph = narrowed(maker.graph(conv(maker, grown, 8)))
    assert kernel_names(extracted(graph)) == ["relu_cast", "conv", "resample_cast", "conv"]


def test_inputs_and_outputs_of_the_model_keep_their_types() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 8, 6, 6), 8)
    graph = maker.graph(y, conv(maker, y, 8))
    result = narrowed(graph)
    assert kernel_names(extracted(result)).count("cast") == 2  # the input, and the first output


def test_few_channels_of_plain_data_stay_in_f32() -> None:
    maker = GraphMaker()
    first = conv(maker, maker.input(1, 3, 8, 8), 16, layout="NCHW->NCHWc", block=16)
    pooled = maker.node("reduce_mean", first, axes=(2, 3))
    flat = maker.node("reshape", pooled, shape=(1, 16))
    graph = narrowed(maker.graph(dense(maker, flat, 4)))
    assert contractions(graph) == ["f32", "bf16"]


@pytest.mark.parametrize(("products", "copies"), [(1024, 1), (1008, 0)])
def test_a_norm_that_is_added_later_stays_exact_where_a_copy_costs_little(
    products: int, copies: int
) -> None:
    maker = GraphMaker()
    x = dense(maker, maker.node("tanh", maker.input(4, 16)), 16)
    norm = maker.node("layer_norm", x, maker.weights(16), maker.weights(16), axis=1)
    narrow = dense(maker, maker.node("relu", dense(maker, norm, products)), 16)
    graph = narrowed(maker.graph(maker.node("add", narrow, norm)))
    assert choose_precision.COPIED == 1024
    assert kernel_names(extracted(graph)).count("cast") == copies


def test_a_contraction_of_no_account_stays_in_f32() -> None:
    maker = GraphMaker()
    y = dense(maker, maker.node("tanh", maker.input(64, 256)), 64)
    token = maker.node("slice", y, starts=(0, 0), steps=(1, 1), shape=(1, 64))
    assert contractions(narrowed(maker.graph(dense(maker, token, 4)))) == ["bf16", "f32"]


def test_without_sums_of_narrow_products_only_what_is_bound_by_its_constants_is_narrow() -> None:
    for rows, wanted in ((4, "bf16"), (5, "f32")):
        maker = GraphMaker()
        graph = maker.graph(dense(maker, maker.node("tanh", maker.input(rows, 32)), 32))
        result = choose_precision.run(graph, ResourceBudget(), BF16_NUMERICS, summed=())
        assert contractions(result) == [wanted]


def test_a_factor_beyond_the_largest_number_keeps_its_contraction_in_f32() -> None:
    maker = GraphMaker()
    y = dense(maker, maker.node("tanh", maker.input(4, 4)), 4)
    huge = maker.constant(np.full((4, 4), 1e5, np.float32))
    graph = maker.graph(maker.node("matmul", y, huge))
    assert contractions(narrowed(graph, F16_NUMERICS)) == ["f16", "f32"]
    assert contractions(narrowed(graph)) == ["bf16", "bf16"]


def test_single_contractions_have_the_storage_that_the_numerics_say() -> None:
    maker = GraphMaker()
    first = dense(maker, maker.node("tanh", maker.input(4, 8)), 8)
    graph = maker.graph(dense(maker, first, 8))
    (kept,) = (node.source for node in graph.nodes if node.output == first)
    apart = BF16_NUMERICS.planned({kept: DType.F32})
    assert contractions(narrowed(graph, apart)) == ["f32", "bf16"]
    alone = DEFAULT_NUMERICS.planned({kept: BF16})
    assert contractions(narrowed(graph, alone)) == ["bf16", "f32"]


def test_other_types_and_numerics_of_the_model_leave_a_graph_as_it_is() -> None:
    maker = GraphMaker()
    graph = maker.graph(dense(maker, maker.input(4, 4), 4))
    assert choose_precision.run(graph, ResourceBudget(), DEFAULT_NUMERICS) is graph
    maker = GraphMaker()
    integers = maker.node("matmul", *(maker.input(4, 4, dtype=DType.I32) for _ in range(2)))
    graph = maker.graph(integers)
    assert choose_precision.run(graph, ResourceBudget(), BF16_NUMERICS) is graph


@pytest.mark.parametrize("numerics", [BF16_NUMERICS, F16_NUMERICS], ids=lambda item: item.name)
@pytest.mark.parametrize("name", SIZES)
def test_network_stays_near_f32_without_kernels_that_only_cast(
    name: str, numerics: Numerics
) -> None:
    graph = import_model_proto(build_model(name, size=SIZES[name]))
    program = extract_kernels(optimise(graph, 8, numerics=numerics))
    inputs = random_inputs(graph)
    for found, expected in zip(
        evaluate_program(program, inputs), evaluate_graph(graph, inputs), strict=True
    ):
        wide = found.astype(np.float64), expected.astype(np.float64)
        assert np.max(np.abs(wide[0] - wide[1])) <= ERROR * np.max(np.abs(wide[1]))
    casts = [call for call in kernel_names(program) if set(call.split("_")) == {"cast"}]
    # of the encoder: what is put in, and the token that is pooled of what is put out
    assert len(casts) == (2 if name == "encoder" else 0)
    pure = optimise(graph, 8)
    assert len(kernel_names(program)) == len(kernel_names(extract_kernels(pure))) + len(casts)


@pytest.mark.parametrize("kinds", [KINDS, IMAGE_KINDS], ids=["any", "images"])
@pytest.mark.parametrize("seed", range(20))
def test_random_graph_means_in_its_kernels_what_its_casts_say(
    seed: int, kinds: tuple[str, ...]
) -> None:
    graph = random_graph(seed, kinds)
    result = optimise(graph, 4, numerics=BF16_NUMERICS)
    verify_graph(result)
    assert [result.types[name] for name in graph.outputs] == [
        graph.types[name] for name in graph.outputs
    ]
    inputs = random_inputs(graph)
    found = evaluate_program(extract_kernels(result), inputs)
    assert_close(found, evaluate_graph(result, inputs), tolerance=ERROR)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_convolutions_of_narrow_floats_are_in_f32_where_nothing_sums_their_products(
    dtype: DType,
) -> None:
    maker = GraphMaker()
    x = maker.input(1, 8, 6, 6, dtype=dtype)
    weight, bias = (
        maker.constant(array.astype(dtype.numpy))
        for array in (maker.rng.standard_normal((16, 8, 3, 3)), maker.rng.standard_normal(16))
    )
    image = maker.node("conv", x, weight, bias, pads=(1, 1, 1, 1))
    rows = maker.node("reshape", image, shape=(16, 36))
    factor = maker.constant(maker.rng.standard_normal((36, 4)).astype(dtype.numpy))
    graph = maker.graph(maker.node("matmul", rows, factor), image)
    found = choose_precision.widen(graph, ())
    assert contractions(found) == ["f32", dtype.value]
    inputs = random_inputs(graph)
    for ours, theirs in zip(
        evaluate_graph(found, inputs), evaluate_graph(graph, inputs), strict=True
    ):
        assert ours.dtype == theirs.dtype
        assert_close([ours.astype(np.float32)], [theirs.astype(np.float32)], 0.01)
    assert structurally_equal(choose_precision.widen(graph, (dtype,)), graph)


def attending(queries: int = 64, keys: int = 64, **attributes: bool) -> Graph:
    """A projection, attention of two heads of it, and a projection of that."""
    maker = GraphMaker()
    x = dense(maker, maker.node("tanh", maker.input(queries, 32)), 128)
    query = maker.node("reshape", x, shape=(1, queries, 2, 64))
    operands = [query, maker.input(1, keys, 2, 64), maker.input(1, keys, 2, 64)]
    if attributes:
        operands.append(maker.constant(np.array([1])))
    order = {f"{name}_perm": (0, 2, 1, 3) for name in ("query", "key", "value")}
    y = maker.node("attention", *operands, perm=(0, 2, 1, 3), scale=0.125, **order, **attributes)
    return maker.graph(dense(maker, maker.node("reshape", y, shape=(queries, 128)), 32))


def attention_types(graph: Graph, tiled: tuple[DType, ...]) -> list[DType]:
    """Of its factors, where the target's matrix tiles hold these types."""
    made = choose_precision.run(graph, ResourceBudget(), BF16_NUMERICS, tiled=tiled)
    verify_graph(made, graph)
    assert_same_meaning(graph, made, ERROR)
    (node,) = (node for node in made.nodes if node.operator == "attention")
    return [made.types[name].dtype for name in node.inputs[:3]]


def test_attention_has_narrow_factors_in_matrix_tiles_alone() -> None:
    assert attention_types(attending(), (BF16,)) == [BF16] * 3
    assert attention_types(attending(), ()) == [DType.F32] * 3
    assert attention_types(attending(), (DType.F16,)) == [DType.F32] * 3


@pytest.mark.parametrize("graph", [attending(queries=8), attending(keys=8)])
def test_attention_that_tiles_do_not_hold_stays_in_f32(graph: Graph) -> None:
    assert attention_types(graph, (BF16,)) == [DType.F32] * 3


def test_attention_of_dynamic_lengths_and_below_a_diagonal_has_narrow_factors() -> None:
    """Loops over tiles end with the keys that are there, and with those that a query sees."""
    assert attention_types(attending(causal=True), (BF16,)) == [BF16] * 3
    graph = attending()
    (node,) = (node for node in graph.nodes if node.operator == "attention")
    type = graph.types[node.inputs[1]]
    dynamic = (((1, 1),), ((Symbol.of("tokens", 1, 64), 64),), ((2, 2),), ((64, 64),))
    part = TensorType.of(type.dtype, dynamic)
    assert part == type
    types = {**graph.types, node.inputs[1]: part}
    assert attention_types(replace(graph, types=types), (BF16,)) == [BF16] * 3
