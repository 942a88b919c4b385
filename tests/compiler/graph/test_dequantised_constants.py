"""Weights that casts and products make floats: what is one dequantize, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.frontend.onnx_models import outputs_of
from tests.compiler.graph.graph_helpers import GraphMaker, operators
from tunefarm.compiler.graph import fold_constants
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

K, N = 256, 96


def _integers(dtype: DType, shape: tuple[int, ...] = (K, N)) -> Array:
    low, high = dtype.limits
    drawn = np.random.default_rng(0).integers(low, high, shape, endpoint=True)
    return drawn.astype(dtype.numpy)


def _scale(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(0.5, 1.0, shape).astype(np.float32)


def _product(maker: GraphMaker, weights: str) -> Graph:
    return maker.graph(maker.node("matmul", maker.input(3, maker.types[weights].shape[0]), weights))


def cast_mul(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8)), to="f32")
    return maker.node("mul", wide, maker.constant(_scale(1, N)))


def scale_first(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.U8)), to="f32")
    return maker.node("mul", maker.constant(_scale(N)), wide)


def float_zero_point(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.U8)), to="f32")
    centred = maker.node("sub", wide, maker.scalar(128.0))
    return maker.node("mul", centred, maker.scalar(0.02))


def zero_point_of_each_column(maker: GraphMaker) -> str:
    """Integers are subtracted as i32, the scale is widened and given an axis."""
    wide = maker.node("cast", maker.constant(_integers(DType.U8)), to="i32")
    zero = maker.node("cast", maker.constant(_integers(DType.U8, (1, N))), to="i32")
    centred = maker.node("cast", maker.node("sub", wide, zero), to="f32")
    scale = maker.node("cast", maker.constant(_scale(N).astype(np.float16)), to="f32")
    return maker.node("mul", centred, maker.node("reshape", scale, shape=(1, N)))


def few_bits(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.U4)), to="f32")
    return maker.node("mul", maker.node("sub", wide, maker.scalar(8.0)), maker.constant(_scale(N)))


SPELLINGS = (cast_mul, scale_first, float_zero_point, zero_point_of_each_column, few_bits)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.__name__)
def test_constant_weights_are_dequantised_by_one_operator(
    spelling: Callable[[GraphMaker], str],
) -> None:
    maker = GraphMaker()
    before = _product(maker, spelling(maker))
    after = fold_constants.dequantise(before)
    assert operators(after) == ["dequantize", "matmul"]
    x = {"x0": np.random.default_rng(2).standard_normal((3, K)).astype(np.float32)}
    np.testing.assert_array_equal(*(outputs_of(graph, x)[0] for graph in (before, after)))


def computed_integers(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.input(K, N, dtype=DType.I8), to="f32")
    return maker.node("mul", wide, maker.constant(_scale(1, N)))


def computed_scale(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8)), to="f32")
    return maker.node("mul", wide, maker.input(1, N))


def fractional_zero_point(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8)), to="f32")
    return maker.node("mul", maker.node("sub", wide, maker.scalar(0.5)), maker.scalar(0.1))


def zero_point_out_of_range(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8)), to="f32")
    return maker.node("mul", maker.node("sub", wide, maker.scalar(128.0)), maker.scalar(0.1))


def wrapping_difference(maker: GraphMaker) -> str:
    zero = maker.constant(np.array(100, np.int8))
    centred = maker.node("sub", maker.constant(_integers(DType.I8)), zero)
    return maker.node("mul", maker.node("cast", centred, to="f32"), maker.scalar(0.1))


def infinite_scale(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8)), to="f32")
    return maker.node("mul", wide, maker.scalar(np.inf))


def wider_result(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8, (1, K * N))), to="f32")
    return maker.node("mul", wide, maker.constant(_scale(2, 1)))


def few_integers(maker: GraphMaker) -> str:
    wide = maker.node("cast", maker.constant(_integers(DType.I8, (K, 2))), to="f32")
    return maker.node("mul", wide, maker.scalar(0.1))


NEIGHBOURS = (
    computed_integers,
    computed_scale,
    fractional_zero_point,
    zero_point_out_of_range,
    wrapping_difference,
    infinite_scale,
    wider_result,
    few_integers,
)


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.__name__)
def test_neighbours_of_dequantised_weights_stay(neighbour: Callable[[GraphMaker], str]) -> None:
    maker = GraphMaker()
    before = _product(maker, neighbour(maker))
    assert fold_constants.dequantise(before) == before
