"""Runs of the f32 model whose inner values are collected: what int8 contractions will read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dims import extent_of, true_shape, whole_dims
from tunefarm.compiler.types.precision import Calibration
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.structure import NO_STRUCTURE
from tunefarm.tuner.calibration.data import Samples
from tunefarm.tuner.calibration.ranges import Method, ValueRange

MOST_BYTES = 512 * 1024 * 1024
"""Of the values that one executable gives in addition to the model's outputs."""

Compile = Callable[[Graph], Executable]


def calibrate(prepared: Graph, samples: Samples, method: Method, compile: Compile) -> Calibration:
    """The ranges of all that the quantisable contractions of a prepared graph read.

    `compile` makes an executable of a graph; there are several, with some of the values each, where
    all at once would take too much memory. Raises SettingsError for a model without contractions.
    """
    found = [item for item in contractions(prepared) if item.quantisable]
    if not found:
        raise SettingsError(
            "the model has no contraction that could be computed in int8",
            hint="build it with --precision default",
        )
    values = {item.data: item.data_identity for item in found if not item.rounds_states}
    ranges = {name: ValueRange() for name in values}
    inner = [name for name in values if name not in prepared.inputs]
    for name in values.keys() - set(inner):
        for run in samples:
            ranges[name].add(run[name])
    for batch in _batches(prepared, inner):
        executable = compile(with_outputs(prepared, batch))
        for run in samples:
            for name, array in executable.run(run).items():
                ranges[name].add(array)
    by_identity = {values[name]: found.range(method) for name, found in ranges.items()}
    return Calibration(str(method), len(samples), samples.digest, by_identity)


def with_outputs(graph: Graph, values: Iterable[str]) -> Graph:
    """The part of a graph that computes these values; all inputs stay.

    Where the model has dynamic shapes they are given without padding, and what the graph
    computes of sizes and conditions stays, too.
    """
    graph = replace(graph, structure=NO_STRUCTURE)
    names, signature = tuple(values), graph.signature
    if signature is None:
        return dead_code.run(replace(graph, outputs=names))
    former = {port.name for port in signature.outputs}
    computed = (name for name in graph.outputs if name not in former)
    ports = tuple(_port(graph, name) for name in names)
    outputs = tuple(dict.fromkeys((*names, *computed)))
    shown = replace(graph, outputs=outputs, signature=replace(signature, outputs=ports))
    return dead_code.run(shown)


def _port(graph: Graph, name: str) -> SizedPort:
    """A value as an output: of its padding nothing is shown, if it is known."""
    type = graph.types[name]
    dims = graph.padded.get(name)
    if dims is None or tuple(map(extent_of, dims)) != type.shape:
        dims = whole_dims(type.shape)
    return SizedPort(name, type.dtype, true_shape(dims), dims)


def _batches(graph: Graph, values: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in values:
        bytes = graph.types[name].bytes
        if batch and size + bytes > MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += bytes
    if batch:
        yield batch
