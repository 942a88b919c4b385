"""What moves data: pad, slice, concat, split, transpose, tile, blocks of pixels, rolls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, one_node, shape_text

_TRANSPOSE: tuple[tuple[Sequence[int], Sequence[int]], ...] = (
    ((1000, 1000), (1, 0)),
    ((517, 333), (1, 0)),
    ((1, 128, 12, 64), (0, 2, 1, 3)),
    ((1, 12, 128, 64), (0, 1, 3, 2)),
    ((1, 64, 112, 112), (0, 2, 3, 1)),
    ((1, 112, 112, 64), (0, 3, 1, 2)),
    ((1, 3, 224, 224), (0, 2, 3, 1)),
    ((1, 224, 224, 3), (0, 3, 1, 2)),
    ((1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)),
    ((8, 33, 17, 5), (3, 1, 0, 2)),
    ((16384, 12), (1, 0)),
    ((20000, 5), (1, 0)),
    ((1, 4, 64, 127), (3, 1, 2, 0)),
    ((1, 7, 7, 8, 8, 64), (0, 5, 1, 3, 2, 4)),
    ((1, 1, 1, 7, 7, 512), (0, 5, 1, 3, 2, 4)),
    ((1, 8, 128, 6, 32), (0, 1, 4, 2, 3)),
    ((1500, 1500), (1, 0)),
    ((31, 101, 67), (2, 1, 0)),
    ((31, 101, 67), (1, 2, 0)),
    ((31, 101, 67), (1, 0, 2)),
    ((13, 17, 19, 23), (0, 3, 2, 1)),
)
_PAD: tuple[tuple[str, Sequence[int], Sequence[int]], ...] = (
    ("constant", (1, 64, 56, 56), (0, 0, 1, 1, 0, 0, 1, 1)),
    ("constant", (1, 3, 224, 224), (0, 0, 3, 3, 0, 0, 3, 3)),
    ("reflect", (1, 32, 64, 64), (0, 0, 3, 3, 0, 0, 3, 3)),
    ("edge", (1, 32, 64, 64), (0, 0, 1, 2, 0, 0, 2, 1)),
    ("wrap", (1, 32, 64, 64), (0, 0, 4, 4, 0, 0, 4, 4)),
    ("constant", (1, 197, 768), (0, 0, 0, 0, 3, 0)),
)
# shape, starts, ends, axes, steps
_SLICE: tuple[tuple[Sequence[int], tuple[list[int], ...]], ...] = (
    ((1, 64, 112, 112), ([0, 0], [112, 112], [2, 3], [2, 2])),
    ((1, 64, 112, 112), ([10, 20], [90, 100], [2, 3], [1, 1])),
    ((1, 128, 2304), ([768], [1536], [2], [1])),
    ((128, 1000), ([999], [-2000], [1], [-1])),
    ((1, 3, 448, 448), ([1, 0], [448, 448], [2, 3], [2, 2])),
    ((300, 700), ([1], [700], [1], [3])),
)
_CONCAT: tuple[tuple[Sequence[Sequence[int]], int], ...] = (
    (((1, 64, 56, 56), (1, 64, 56, 56)), 1),
    (((1, 30, 28, 28), (1, 17, 28, 28), (1, 5, 28, 28)), 1),
    (((1, 12, 512, 64), (1, 12, 1, 64)), 2),
    (((1, 1, 768), (1, 196, 768)), 1),
    (((1000, 4), (1000, 1), (1000, 80)), 1),
    (((128, 100), (128, 28)), -1),
)
# parts, their shape, axis
_CONCAT_OF_MANY: tuple[tuple[int, Sequence[int], int], ...] = (
    (496, (1000, 1), 1),
    (496, (1, 1), 1),
    (100, (1000, 3), 1),
    (300, (1, 100), 0),
    (200, (10, 1, 50), 1),
    (200, (10, 50, 1), 2),
    (30, (8, 8, 28, 28), 1),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for shape, order in _TRANSPOSE:
        name = f"transpose {','.join(map(str, order))}: {shape_text(shape)}"
        yield one_node("transpose", name, "Transpose", shape, perm=order)
    for mode, shape, pads in _PAD:
        name = f"pad {mode}: {shape_text(shape)}"
        yield one_node("pad", name, "Pad", shape, constants=[pads], mode=mode)
    for shape, bounds in _SLICE:
        name = f"slice {bounds[0]} to {bounds[1]} step {bounds[3]}: {shape_text(shape)}"
        yield one_node("slice", name, "Slice", shape, constants=bounds)
    for shapes, axis in _CONCAT:
        name = f"concat over {axis}: {' '.join(map(shape_text, shapes))}"
        yield one_node("concat", name, "Concat", *shapes, axis=axis)
    for parts, shape, axis in _CONCAT_OF_MANY:
        name = f"concat of {parts} over {axis}: {shape_text(shape)}"
        yield one_node("concat", name, "Concat", *[shape] * parts, axis=axis)
    for name, (family, write) in _OTHERS.items():
        yield OperatorCase(family, name, write)


def _reshaped(net: CaseBuilder, data: str, *shape: int) -> str:
    return net.node("Reshape", data, net.constant(np.array(shape)))


def _pad_between(mode: str) -> Callable[[CaseBuilder], str]:
    def write(net: CaseBuilder) -> str:
        data = net.conv(net.input(1, 16, 56, 56), 16, 64)
        pads = net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
        return net.conv(net.node("Pad", data, pads, mode=mode), 64, 16)

    return write


def _scaled_and_turned(net: CaseBuilder) -> str:
    scaled = net.node("Mul", net.input(1, 4, 64, 127), net.weight(64, 127))
    return net.node("Transpose", scaled, perm=[3, 1, 2, 0])


def _pooled(net: CaseBuilder) -> str:
    turned = net.node("Transpose", net.input(1, 28, 28, 192), perm=[0, 3, 1, 2])
    return net.node("AveragePool", turned, kernel_shape=[2, 2], strides=[2, 2])


def _turned_and_reduced(net: CaseBuilder) -> str:
    turned = net.node("Transpose", net.input(1, 16, 16, 168), perm=[0, 3, 1, 2])
    return net.node("GlobalAveragePool", net.node("Add", turned, net.input(1, 168, 16, 16)))


def _split(parts: int, axis: int, *shape: int) -> Callable[[CaseBuilder], list[str]]:
    return lambda net: net.nodes("Split", parts, net.input(*shape), axis=axis, num_outputs=parts)


def _pairs_of_columns(columns: int, rows: int) -> Callable[[CaseBuilder], str]:
    """Products of all pairs of columns side by side, as PolynomialFeatures of scikit-learn."""

    def write(net: CaseBuilder) -> str:
        data = net.input(rows, columns)
        over = net.constant(np.array([1]))
        products = [
            net.node("ReduceProd", net.node("Gather", data, net.constant(pair), axis=1), over)
            for pair in combinations_with_replacement(range(columns), 2)
        ]
        return net.node("Concat", data, *products, axis=1)

    return write


def _split_between(net: CaseBuilder) -> list[str]:
    data = net.conv(net.input(1, 16, 40, 40), 16, 64)
    left, right = net.nodes("Split", 2, data, axis=1, num_outputs=2)
    joined = net.node("Concat", net.node("Relu", left), right, net.node("Add", left, right), axis=1)
    return [net.conv(joined, 96, 16)]


def _concat_between(net: CaseBuilder) -> str:
    parts = [net.conv(net.input(1, 16, 56, 56), 16, channels) for channels in (64, 32, 21)]
    return net.conv(net.node("Concat", *parts, axis=1), 117, 16)


def _channel_shuffle(net: CaseBuilder) -> str:
    data = net.conv(net.input(1, 16, 28, 28), 16, 120)
    apart = net.node("Transpose", _reshaped(net, data, 1, 4, 30, 28, 28), perm=[0, 2, 1, 3, 4])
    return net.conv(_reshaped(net, apart, 1, 120, 28, 28), 120, 16)


def _focus(net: CaseBuilder) -> str:
    """Every second pixel of four phases side by side, as YOLO's stem writes it."""
    data = net.input(1, 3, 320, 320)
    last, axes, steps = (net.constant(np.array(v)) for v in ([9999, 9999], [2, 3], [2, 2]))
    phases = [
        net.node("Slice", data, net.constant(np.array(start)), last, axes, steps)
        for start in ([0, 0], [1, 0], [0, 1], [1, 1])
    ]
    return net.conv(net.node("Concat", *phases, axis=1), 12, 32)


def _roll(net: CaseBuilder) -> str:
    data, axes = net.input(1, 56, 56, 96), net.constant(np.array([1, 2]))
    far = net.constant(np.array([9999, 9999]))
    for axis in (1, 2):
        start, end, along = (net.constant(np.array([v])) for v in (3, 9999, axis))
        zero = net.constant(np.array([0]))
        parts = [
            net.node("Slice", data, start, end, along),
            net.node("Slice", data, zero, start, along),
        ]
        data = net.node("Concat", *parts, axis=axis)
    return net.node("Slice", data, net.constant(np.array([0, 0])), far, axes)


def _windows(net: CaseBuilder) -> str:
    """Windows of 7 x 7 pixels, as Swin makes them."""
    apart = _reshaped(net, net.input(1, 56, 56, 96), 1, 8, 7, 8, 7, 96)
    return _reshaped(net, net.node("Transpose", apart, perm=[0, 1, 3, 2, 4, 5]), 64, 49, 96)


def _heads(net: CaseBuilder) -> list[str]:
    """Queries, keys and values of one product apart, head by head."""
    apart = _reshaped(net, net.input(1, 197, 1152), 1, 197, 3, 6, 64)
    turned = net.node("Transpose", apart, perm=[2, 0, 3, 1, 4])
    parts = net.nodes("Split", 3, turned, axis=0, num_outputs=3)
    return [net.node("Squeeze", part, net.constant(np.array([0]))) for part in parts]


def _blocks(operator: str, mode: str, size: int, *shape: int) -> Callable[[CaseBuilder], str]:
    def write(net: CaseBuilder) -> str:
        attributes = {"mode": mode} if mode else {}
        return net.node(operator, net.input(*shape), blocksize=size, **attributes)

    return write


def _super_resolution(net: CaseBuilder) -> str:
    data = net.conv(net.input(1, 16, 64, 64), 16, 48)
    return net.node("DepthToSpace", data, blocksize=4, mode="CRD")


def _picture(net: CaseBuilder) -> str:
    """Larger by 4, with what a cheaper enlargement has already, between 0 and 1."""
    data = net.node("DepthToSpace", net.conv(net.input(1, 16, 64, 64), 16, 48), blocksize=4)
    total = net.node("Add", data, net.input(1, 3, 256, 256))
    return net.node("Clip", total, net.constant(0.0), net.constant(1.0))


def _unshuffle(net: CaseBuilder) -> str:
    """As torch exports `pixel_unshuffle`, with an activation behind it."""
    apart = _reshaped(net, net.input(1, 16, 64, 64), 1, 16, 32, 2, 32, 2)
    turned = net.node("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    return net.node("Relu", _reshaped(net, turned, 1, 64, 32, 32))


def _shuffle_after_activation(net: CaseBuilder) -> str:
    data = net.node("Relu", net.input(1, 96, 28, 28))
    apart = net.node("Transpose", _reshaped(net, data, 1, 2, 48, 28, 28), perm=[0, 2, 1, 3, 4])
    return _reshaped(net, apart, 1, 96, 28, 28)


def _expand(*shape: int) -> Callable[[CaseBuilder], str]:
    def write(net: CaseBuilder) -> str:
        return net.node(
            "Expand", net.input(*shape[:-3], 1, *shape[-2:]), net.constant(np.array(shape))
        )

    return write


def _repeat(*shape: int, repeats: Sequence[int]) -> Callable[[CaseBuilder], str]:
    return lambda net: net.node("Tile", net.input(*shape), net.constant(np.array(repeats)))


_OTHERS: dict[str, tuple[str, Callable[[CaseBuilder], str | Sequence[str]]]] = {
    "pad constant between convs: 1x64x56x56": ("pad", _pad_between("constant")),
    "pad reflect between convs: 1x64x56x56": ("pad", _pad_between("reflect")),
    "split 3 over 2: 1x128x2304": ("split", _split(3, 2, 1, 128, 2304)),
    "split 2 over 1: 1x58x28x28": ("split", _split(2, 1, 1, 58, 28, 28)),
    "split 496 over 1: 1000x496": ("split", _split(496, 1, 1000, 496)),
    "split 200 over 1: 10x200x50": ("split", _split(200, 1, 10, 200, 50)),
    "pairs of 30 columns: 1x30": ("concat", _pairs_of_columns(30, 1)),
    "pairs of 30 columns: 1000x30": ("concat", _pairs_of_columns(30, 1000)),
    "split, concat between convs: 1x64x40x40": ("split", _split_between),
    "concat between convs: 1x117x56x56": ("concat", _concat_between),
    "channel shuffle between convs: 1x120x28x28": ("transpose", _channel_shuffle),
    "windows of 7x7: 1x56x56x96": ("transpose", _windows),
    "transpose, average pool: 1x28x28x192": ("transpose", _pooled),
    "transpose, add, global average pool: 1x16x16x168": ("transpose", _turned_and_reduced),
    "mul, transpose: 1x4x64x127": ("transpose", _scaled_and_turned),
    "heads apart: 1x197x1152": ("transpose", _heads),
    "four phases, concat, conv: 1x3x320x320": ("slice", _focus),
    "roll by 3: 1x56x56x96": ("slice", _roll),
    "space to depth 2: 1x32x64x64": (
        "depth and space", _blocks("SpaceToDepth", "", 2, 1, 32, 64, 64)
    ),
    "depth to space 2: 1x128x32x32": (
        "depth and space", _blocks("DepthToSpace", "DCR", 2, 1, 128, 32, 32)
    ),
    "pixel shuffle 3: 1x27x100x100": (
        "depth and space", _blocks("DepthToSpace", "CRD", 3, 1, 27, 100, 100)
    ),
    "conv, pixel shuffle 4: 1x48x64x64": ("depth and space", _super_resolution),
    "depth to space 4, add, clip: 1x48x64x64": ("depth and space", _picture),
    "pixel unshuffle 2, relu: 1x16x64x64": ("depth and space", _unshuffle),
    "relu, channel shuffle: 1x96x28x28": ("transpose", _shuffle_after_activation),
    "expand: 1x4x4x128x64": ("expand", _expand(1, 4, 4, 128, 64)),
    "expand: 64x56x56": ("expand", _expand(64, 56, 56)),
    "tile 1,2,2: 32x40x40": ("tile", _repeat(32, 40, 40, repeats=(1, 2, 2))),
    "tile 100,1: 1x768": ("tile", _repeat(1, 768, repeats=(100, 1))),
    "tile 1,7: 100x9": ("tile", _repeat(100, 9, repeats=(1, 7))),
}  # fmt: skip
