"""Random graphs: optimised, fused and extracted, they still mean the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    evaluate_graph,
    evaluate_program,
    random_inputs,
)
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.layouts import choose_layouts
from tunefarm.compiler.plan.optimise import optimise

KINDS = ("unary", "binary", "binary", "constant", "window", "move", "reduce", "dense")
IMAGE_KINDS = ("unary", "binary", "constant", "window", "window", "window", "image")
UNARY = ("relu", "tanh", "sigmoid", "neg", "abs", "cos", "hard_swish", "identity", "gelu")
BINARY = ("add", "sub", "mul", "max", "min")
EXTENTS = (1, 2, 5, 8, 12)


def random_graph(seed: int, kinds: tuple[str, ...] = KINDS) -> Graph:
    rng = random.Random(seed)
    maker = GraphMaker()
    maker.rng = np.random.default_rng(seed)
    channels = rng.choice((3, 8, 12, 16))
    values = [maker.input(rng.choice((1, 2)), channels, rng.choice((5, 8)), rng.choice((5, 8)))]
    if rng.random() < 0.5:
        values.append(maker.input(*maker.types[values[0]].shape))
    for _ in range(rng.randint(3, 16)):
        value = _random_node(rng, maker, values, rng.choice(kinds))
        if value and maker.types[value].size < 20_000:
            values.append(value)
    # mostly the last values, so that chains get long
    count = rng.randint(0, min(2, len(values)))
    outputs = [values[-1], *rng.sample(values, count)]
    return maker.graph(*dict.fromkeys(outputs))


def _random_node(rng: random.Random, maker: GraphMaker, values: list[str], kind: str) -> str:
    x = values[-1] if rng.random() < 0.6 else rng.choice(values)
    shape = maker.types[x].shape
    try:
        if kind == "unary":
            return maker.node(rng.choice(UNARY), x)
        if kind == "binary":
            return maker.node(rng.choice(BINARY), x, rng.choice(values))
        if kind == "constant":
            drop = rng.randint(0, len(shape))
            part = tuple(1 if rng.random() < 0.5 else extent for extent in shape[drop:])
            operands = [x, maker.weights(*part)]
            rng.shuffle(operands)
            return maker.node(rng.choice(BINARY), *operands)
        if kind == "window" and len(shape) == 4:
            return _window(rng, maker, x)
        if kind == "image" and len(shape) == 4:
            return _image(rng, maker, x, values)
        if kind == "move":
            return _move(rng, maker, x, values)
        if kind == "reduce" and shape:
            return _reduce(rng, maker, x)
        if kind == "dense" and len(shape) >= 2:
            weight = maker.weights(shape[-1], rng.choice(EXTENTS), scale=1 / shape[-1])
            return maker.node("matmul", x, weight)
    except ShapeError:
        return ""  # operands that do not fit: draw again
    return ""


def _window(rng: random.Random, maker: GraphMaker, x: str) -> str:
    channels, height, width = maker.types[x].shape[1:]
    if rng.random() < 0.3:
        kernel, stride, pad = rng.choice(((2, 2, 0), (3, 1, 1), (3, 2, 1)))
        out = [(extent + 2 * pad - kernel) // stride + 1 for extent in (height, width)]
        return maker.node(
            rng.choice(("max_pool", "average_pool")),
            x,
            kernel=(kernel, kernel),
            strides=(stride, stride),
            pads=(pad,) * 4,
            shape=tuple(out),
        )
    size = rng.choice((1, 3))
    depthwise = rng.random() < 0.25
    outputs = channels if depthwise else rng.choice((4, 8, 12, 16))
    inputs = 1 if depthwise else channels
    weight = maker.weights(outputs, inputs, size, size, scale=1 / (inputs * size))
    operands = [x, weight, *([maker.weights(outputs)] if rng.random() < 0.5 else [])]
    y = maker.node(
        "conv",
        *operands,
        pads=(size // 2,) * 4,
        groups=channels if depthwise else 1,
        strides=rng.choice(((1, 1), (2, 2))),
    )
    if rng.random() < 0.4:
        variance = maker.constant(np.full(outputs, 1.5, np.float32))
        rest = [maker.weights(outputs) for _ in range(3)]
        y = maker.node("batch_norm", y, *rest, variance)
    return y


def _image(rng: random.Random, maker: GraphMaker, x: str, values: list[str]) -> str:
    """What networks do with images besides windows: gates, concatenation, global pools."""
    if rng.random() < 0.3:
        return maker.node(rng.choice(("reduce_mean", "reduce_max", "reduce_sum")), x, axes=(2, 3))
    if rng.random() < 0.5:
        pooled = maker.node("reduce_mean", x, axes=(3, 2))
        return maker.node("mul", x, maker.node("sigmoid", pooled))
    images = [v for v in values if maker.types[v].shape[::2] == maker.types[x].shape[::2]]
    return maker.node("concat", x, rng.choice(images or [x]), axis=1)


def _move(rng: random.Random, maker: GraphMaker, x: str, values: list[str]) -> str:
    shape = maker.types[x].shape
    rank = len(shape)
    kind = rng.choice(("transpose", "slice", "concat", "pad", "reshape", "expand"))
    if kind == "transpose":
        return maker.node("transpose", x, perm=tuple(rng.sample(range(rank), rank)))
    if kind == "slice":
        counts = tuple(rng.randint(1, extent) for extent in shape)
        return maker.node("slice", x, starts=(0,) * rank, steps=(1,) * rank, shape=counts)
    if kind == "concat" and rank:
        same = [value for value in values if maker.types[value].shape == shape]
        return maker.node("concat", x, rng.choice(same), axis=rng.randrange(rank))
    if kind == "pad":
        pads = tuple(rng.randint(0, 1) for _ in range(2 * rank))
        return maker.node("pad", x, pads=pads)
    if kind == "reshape" and rank > 1:
        return maker.node("reshape", x, shape=(shape[0] * shape[1], *shape[2:]))
    return maker.node("expand", x, shape=(2, *(1 for _ in shape)))


def _reduce(rng: random.Random, maker: GraphMaker, x: str) -> str:
    rank = len(maker.types[x].shape)
    if rng.random() < 0.3:
        return maker.node("softmax", x, axis=rng.randrange(rank))
    axes = (2, 3) if rank == 4 else tuple(rng.sample(range(rank), rng.randint(1, rank)))
    name = rng.choice(("reduce_sum", "reduce_mean", "reduce_max"))
    return maker.node(name, x, axes=axes, keepdims=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(60))
def test_random_graph_keeps_its_meaning(seed: int) -> None:
    graph = random_graph(seed)
    inputs = random_inputs(graph, seed)
    expected = evaluate_graph(graph, inputs)
    for block in (None, 4, 8):
        optimised = optimise(graph, block)
        assert_close(evaluate_graph(optimised, inputs), expected, tolerance=1e-4)
        program = extract_kernels(optimised)
        assert_close(evaluate_program(program, inputs), expected, tolerance=1e-4)
        assert structurally_equal(optimise(optimised, block), optimised)


@pytest.mark.parametrize("seed", range(60))
def test_random_image_network_keeps_its_meaning_when_all_of_it_is_blocked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_layouts, "FLOPS_PER_CONVERTED_BYTE", 0)
    graph = random_graph(seed, IMAGE_KINDS)
    inputs = random_inputs(graph, seed)
    expected = evaluate_graph(graph, inputs)
    for block in (4, 8):
        optimised = optimise(graph, block)
        assert_close(evaluate_graph(optimised, inputs), expected, tolerance=1e-4)
        program = extract_kernels(optimised)
        assert_close(evaluate_program(program, inputs), expected, tolerance=1e-4)
