"""The loops of the sketches that move rows, windows and blocks through memory, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from compiler.kernels.kernel import FusedKernel
from compiler.schedule.nest_shape import (
    NestBuilder,
    NestShape,
    Numbers,
    Positions,
    aliased_lines,
    operands_of,
)
from compiler.schedule.space import Choice, ChoiceValue

Domains = Mapping[str, Sequence[ChoiceValue]]


def row_shape(
    kernel: FusedKernel,
    lanes: int,
    threads: int,
    choices: Sequence[Choice],
    vector: str,
    width: str,
    kept: int = 1,
) -> Callable[[Positions], NestShape]:
    """Rows one after another, `width` vectors of the axis `vector` at a time.

    `width` names the choice that says how many vectors, `kept` how many values each has until it is
    written (the points of a window). Reductions over the whole row count as one pass over it.
    """
    domains = {choice.name: choice.values for choice in choices}
    axes, extents = _axes(kernel)
    numbers = {name: number for number, name in enumerate(axes)}
    operands = operands_of(kernel, kernel.stages, numbers)
    output = kernel.output
    names = [axis.name for axis in output.axes]
    along = extents[vector] if vector else 1
    points = math.prod(axis.extent for axis in output.axes)
    reductions = [name for name in domains if name.startswith("accumulators")]
    work = sum(
        math.prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes))
        for stage in kernel.stages
    )

    def shape(positions: Positions) -> NestShape:
        count = len(positions[width])
        vectors = _numbers(domains, width, positions)
        vectors = np.where(vectors * lanes <= along, vectors, 1.0)
        nest = NestBuilder(axes, count)
        for name in axes:
            if name not in names:
                nest.inside[numbers[name]] = extents[name]
        if vector:
            nest.inside[numbers[vector]] = np.minimum(vectors * lanes, along)
            nest.loop(vector, along / np.minimum(vectors * lanes, along))
        for name in reversed(names):
            if name != vector:
                nest.loop(name, float(extents[name]))
        held = [_numbers(domains, name, positions) for name in reductions]
        accumulators = np.minimum.reduce(held) if held else vectors * 1.0
        whole = np.floor(along / (vectors * lanes)) * vectors * lanes / along
        copied = _copied(kernel, domains, positions)
        pieces, grains = _shared(domains, positions, threads, points / along)
        return NestShape(
            operands=operands,
            inside=nest.inside,
            order=nest.order,
            trips=nest.trips,
            body=vectors * kept,
            accumulators=accumulators,
            registers=np.maximum(accumulators, vectors) + 1,
            loads=vectors * kept,
            step=vectors * kept,
            cycles=np.full(count, work / lanes / 2),
            flops=np.full(count, float(work)),
            full=whole,
            lanes=np.full(count, along / (math.ceil(along / lanes) * lanes)),
            aliased=np.ones(count),
            temporary=copied,
            pieces=pieces,
            grains=grains,
        )

    return shape


def block_shape(
    kernel: FusedKernel,
    lanes: int,
    threads: int,
    choices: Sequence[Choice],
    read: str,
    written: str,
) -> Callable[[Positions], NestShape]:
    """Square blocks of lanes x lanes, in blocks of blocks along `read` and `written`."""
    domains = {choice.name: choice.values for choice in choices}
    axes, extents = _axes(kernel)
    numbers = {name: number for number, name in enumerate(axes)}
    operands = operands_of(kernel, kernel.stages, numbers)
    points = math.prod(extents.values())
    rest = [name for name in axes if name not in (read, written)]

    def shape(positions: Positions) -> NestShape:
        count = len(positions["read"])
        sizes = {
            axis: _numbers(domains, choice, positions)
            for axis, choice in ((read, "read"), (written, "written"))
        }
        nest = NestBuilder(axes, count)
        nest.inside[numbers[read]] = nest.inside[numbers[written]] = lanes

        def first(name: str) -> npt.NDArray[np.bool_]:
            table = np.array([value == "read" for value in domains[name]])
            return np.asarray(table[positions[name]], np.bool_)

        inner, outer = first("inner"), first("order")
        a, b = numbers[read], numbers[written]
        nest.loop(np.where(inner, a, b), np.where(inner, sizes[read], sizes[written]))
        nest.loop(np.where(inner, b, a), np.where(inner, sizes[written], sizes[read]))
        turns = {axis: extents[axis] / (sizes[axis] * lanes) for axis in (read, written)}
        nest.loop(np.where(outer, b, a), np.where(outer, turns[written], turns[read]))
        nest.loop(np.where(outer, a, b), np.where(outer, turns[read], turns[written]))
        for name in reversed(rest):
            nest.loop(name, float(extents[name]))
        executed = np.ones(count)
        for axis in (read, written):
            executed = executed * np.ceil(turns[axis]) / turns[axis]
        outside = math.prod(extents[name] for name in rest)
        iterations: Numbers | float = float(outside)
        if not rest:
            iterations = np.where(outer, np.ceil(turns[read]), np.ceil(turns[written]))
        pieces, grains = _shared(domains, positions, threads, iterations)
        return NestShape(
            operands=operands,
            inside=nest.inside,
            order=nest.order,
            trips=nest.trips,
            body=np.full(count, float(lanes)),
            accumulators=np.full(count, float(lanes)),
            registers=np.full(count, float(lanes)),
            loads=np.full(count, float(lanes)),
            step=np.full(count, float(lanes)),
            cycles=points / lanes * executed,
            flops=points * executed,
            full=1.0 / executed,
            lanes=np.ones(count),
            aliased=aliased_lines(operands[0].stride(b), np.full(count, float(lanes))),
            temporary=np.zeros(count),
            pieces=pieces,
            grains=grains,
        )

    return shape


def _axes(kernel: FusedKernel) -> tuple[list[str], dict[str, int]]:
    """All axes of the stages by name: the output's first, then the others', and their extents."""
    extents: dict[str, int] = {axis.name: axis.extent for axis in kernel.output.axes}
    for stage in kernel.stages:
        for axis in (*stage.axes, *stage.reduce_axes):
            extents.setdefault(axis.name, axis.extent)
    return list(extents), extents


def _numbers(domains: Domains, name: str, positions: Positions) -> Numbers:
    table = np.array([float(str(value)) for value in domains[name]])
    return np.asarray(table[positions[name]], np.float64)


def _copied(kernel: FusedKernel, domains: Domains, positions: Positions) -> Numbers:
    """Bytes of the stages before the anchor where padding is copied."""
    count = len(next(iter(positions.values())))
    if "padding" not in domains:
        return np.zeros(count)
    stages = [s for s in kernel.stages[:-1] if s.name != kernel.anchor and not s.reduce_axes]
    size = sum(math.prod(s.shape) * s.dtype.bytes for s in stages)
    table = np.array([2.0 * size * (value == "copy") for value in domains["padding"]])
    return np.asarray(table[positions["padding"]], np.float64)


def _shared(
    domains: Domains, positions: Positions, threads: int, iterations: Numbers | float
) -> tuple[Numbers, Numbers]:
    count = len(next(iter(positions.values())))
    if "chunks" not in domains:
        return np.ones(count), np.ones(count)
    pieces = np.broadcast_to(np.asarray(iterations, np.float64), (count,))
    return pieces, np.minimum(pieces, _numbers(domains, "chunks", positions) * threads)
