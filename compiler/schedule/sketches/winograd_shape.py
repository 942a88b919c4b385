"""The loops of the Winograd candidates in closed form: the products of one block of tile rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.schedule.nest_shape import NestBuilder, NestShape, Numbers, Operand, Positions
from compiler.schedule.space import Choice

AXES = ("window", "tile", "output", "input")


def winograd_shape(
    extents: Mapping[str, int],
    m: int,
    lanes: int,
    element: int,
    threads: int,
    choices: Sequence[Choice],
    transform_operations: int,
) -> Callable[[Positions], NestShape]:
    """A function from positions of `choices` to the shape of the loops; F(m x m, 3 x 3).

    Vectors have so many `lanes` of `element` bytes.
    """
    domains = {choice.name: choice.values for choice in choices}
    window = (m + 2) ** 2
    rows, width = -(-extents["oh"] // m), -(-extents["ow"] // m)
    inputs, outputs = extents["icb"] * extents["ici"], extents["ocb"]
    tiles = extents["n"] * rows * width
    row_table = np.array([int(str(value)) for value in domains["rows"]])
    tile_table = np.array([value for value in domains["tile"] if isinstance(value, tuple)])
    unroll_table = np.array([int(str(value)) for value in domains["unroll"]])
    vector = element * lanes
    operands = (
        Operand("data.both", element, (((0, 1),), ((1, 1),), ((3, 1),)), (window, tiles, inputs)),
        Operand("filter", vector, (((0, 1),), ((2, 1),), ((3, 1),)), (window, outputs, inputs)),
        Operand("products", vector, (((0, 1),), ((1, 1),), ((2, 1),)), (window, tiles, outputs)),
    )
    products = 2.0 * window * tiles * inputs * outputs * lanes
    transforms = float(transform_operations * tiles * window * (inputs + outputs * lanes))

    def shape(positions: Positions) -> NestShape:
        count = len(positions["tile"])
        columns, vectors = (tile_table[positions["tile"]] * 1.0).T
        unroll = np.minimum(unroll_table[positions["unroll"]] * 1.0, extents["ici"])
        block = row_table[positions["rows"]] * float(width)
        columns = np.minimum(columns, block)
        channels = np.zeros(count, np.bool_)
        if "share" in domains:
            table = np.array([value == "channels" for value in domains["share"]])
            channels = table[positions["share"]]
        nest = NestBuilder(AXES, count)
        nest.inside[1], nest.inside[2], nest.inside[3] = columns, vectors, unroll
        blocks = outputs / vectors
        row_blocks = tiles / block
        nest.loop("input", inputs / unroll)
        nest.loop("tile", block / columns)
        nest.loop("window", float(window))
        nest.loop(np.where(channels, 1, 2), np.where(channels, row_blocks, blocks))
        nest.loop(np.where(channels, 2, 1), np.where(channels, blocks, row_blocks))
        whole, rest = np.divmod(block, columns)

        def step(size: Numbers) -> Numbers:
            arithmetic = np.maximum(size * vectors, size + vectors) / 2
            return np.asarray(np.maximum(arithmetic, 4.0) + 0.3, np.float64)

        per_block = whole * step(columns) + np.where(rest > 0, step(np.maximum(rest, 1.0)), 0.0)
        cycles = per_block * inputs * window * np.ceil(blocks) * row_blocks
        cycles = cycles + transforms / lanes / 2
        repeated = np.where(channels, np.ceil(blocks) / blocks, 1.0)
        pieces = np.ones(count)
        grains = np.ones(count)
        if threads > 1:
            pieces = np.where(channels, extents["n"] * np.ceil(blocks), row_blocks)
            chunks = np.array([float(str(value)) for value in domains["chunks"]])
            grains = np.minimum(pieces, chunks[positions["chunks"]] * threads)
        transformed = 2.0 * element * tiles * window * (inputs + outputs * lanes)
        return NestShape(
            operands=operands,
            inside=nest.inside,
            order=nest.order,
            trips=nest.trips,
            body=columns * vectors * unroll,
            accumulators=columns * vectors,
            registers=columns * vectors + vectors + 1,
            loads=columns + vectors,
            step=columns * vectors,
            cycles=cycles,
            flops=products * repeated + transforms,
            full=whole * columns / block * np.floor(blocks) / blocks,
            lanes=np.full(count, extents["oh"] * extents["ow"] / (rows * width * m * m)),
            aliased=np.ones(count),
            temporary=np.full(count, transformed),
            pieces=pieces,
            grains=grains,
        )

    return shape
