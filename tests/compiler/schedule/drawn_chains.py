"""Drawn chains: convolutions, pools and products, each of which reads what the last one gave."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels

FORMS = (
    ("pw", "pw", "dw"),
    ("dw", "pw"),
    ("pw", "dw"),
    ("pw", "dw", "pw"),
    ("pw", "pw"),
    ("pw", "max"),
    ("3x3", "max"),
    ("max", "pw"),
)


def chained_call(graph: Graph, values: Sequence[str]) -> KernelCall:
    """The call of the only kernel of a graph whose values are chained."""
    calls = extract_kernels(graph, chains=values).calls
    kernels = [call for call in calls if isinstance(call, KernelCall)]
    assert len(kernels) == 1, [call.kernel.name for call in kernels]
    return kernels[0]


def drawn_chain(rng: random.Random, lanes: int, form: Sequence[str]) -> tuple[Graph, list[str]]:
    """A graph of these parts on blocks of `lanes` channels, and what they give each other."""
    maker = GraphMaker()
    blocks, batch = rng.randint(1, 3), rng.choice((1, 1, 2))
    y = data = maker.input(batch, blocks, rng.randint(5, 13), rng.randint(5, 13), lanes)
    between: list[str] = []
    for number, kind in enumerate(form):
        y = _part(maker, rng, y, kind, lanes)
        if number < len(form) - 1:
            between.append(y)
        if rng.random() < 0.7:
            y = maker.node("clip", y, min=-0.5, max=1.0)
    if maker.types[y].shape == maker.types[data].shape and rng.random() < 0.7:
        y = maker.node("add", y, data)
    return maker.graph(y), between


def drawn_products(rng: random.Random) -> tuple[Graph, list[str]]:
    """Two products with an activation between them."""
    maker = GraphMaker()
    rows, inner, hidden, outer = (rng.randint(3, 70) for _ in range(4))
    x = maker.input(*rng.choice(((), (2,))), rows, inner)
    first = maker.node("matmul", x, maker.weights(inner, hidden))
    y = maker.node("add", first, maker.weights(hidden))
    y = maker.node("relu", y) if rng.random() < 0.8 else y
    y = maker.node("matmul", y, maker.weights(hidden, outer))
    y = maker.node("add", y, maker.weights(outer)) if rng.random() < 0.8 else y
    return maker.graph(y), [first]


def _part(maker: GraphMaker, rng: random.Random, data: str, kind: str, lanes: int) -> str:
    _, blocks, height, width, _ = maker.types[data].shape
    channels = blocks * lanes
    dilation = rng.choice((1, 1, 2)) if min(height, width) > 4 else 1
    pads = tuple(rng.choice((0, 1, 2)) for _ in range(4))
    stride = rng.choice((1, 1, 2))
    windows = {"strides": (stride, rng.choice((1, stride))), "pads": pads}
    if min(height, width) < 3:
        windows["pads"] = (1, 1, 1, 1)
    if kind == "max":
        shape = tuple(
            (extent + windows["pads"][i] + windows["pads"][2 + i] - 3) // windows["strides"][i] + 1
            for i, extent in enumerate((height, width))
        )
        return maker.node("max_pool", data, kernel=(3, 3), layout="NCHWc", shape=shape, **windows)
    outputs, bias = rng.randint(1, 3) * lanes, rng.random() < 0.7
    kept = channels - (rng.randrange(lanes) if rng.random() < 0.4 else 0)  # others are padding
    groups, weight = 1, (outputs, kept, 1, 1)
    if kind == "dw":
        outputs, groups, weight = channels, channels, (channels, 1, 3, 3)
    if kind == "3x3":
        weight = (outputs, kept, 3, 3)
    if kind == "pw":
        windows = {} if rng.random() < 0.8 else {"strides": (2, 2)}
    elif dilation == 2:
        windows |= {"dilations": (2, 2), "pads": (2, 2, 2, 2)}
    operands = [data, maker.weights(*weight), *([maker.weights(outputs)] if bias else [])]
    return maker.node("conv", *operands, layout="NCHWc", groups=groups, **windows)
