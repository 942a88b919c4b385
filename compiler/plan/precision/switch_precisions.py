"""A graph in which what single contractions read can be rounded while it runs.

    y = conv(x, w)   ->   y = conv(x + s (rounded(x) - x), w)     s: one more input of the graph

One build so tells what each of hundreds of contractions costs of the outputs: with one switch at 1
and all others at 0. Weights stay as they are: per channel they are rounded far more finely. A
recurrence rounds its own states, so that both forms are computed, weights rounded too, and what is
shown is y + s (y in int8 - y).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.plan.precision.contractions import Contraction, contractions
from tunefarm.compiler.plan.precision.quantise import Quantisation, rounded_recurrence
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.precision import Calibration, Precision
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.tensor_type import TensorType

NARROW = {Precision.BF16: DType.BF16, Precision.F16: DType.F16}
"""The storage of precisions that are narrow floats."""

Switches = Mapping[tuple[str, Precision], str]
"""The inputs that round what a contraction, by identity, reads; in f32, without axes."""


def switched(
    prepared: Graph, kinds: Collection[Precision], calibration: Calibration | None
) -> tuple[Graph, Switches]:
    """The prepared graph with a switch for each contraction that can be in each of these kinds.

    int8 needs the ranges of a calibration; contractions without one have no switch for it.
    """
    emitter = _Emitter(prepared, kinds, calibration)
    return emitter.run(), emitter.switches


class _Emitter:
    def __init__(
        self, graph: Graph, kinds: Collection[Precision], calibration: Calibration | None
    ) -> None:
        self.graph = graph
        self.kinds = kinds
        self.ranges = {} if calibration is None else calibration.ranges
        self.found = {item.value: item for item in contractions(graph)}
        self.switches = {
            (item.identity, kind): f"{item.identity}_{kind}"
            for item in self.found.values()
            for kind in kinds
            if self._has(item, kind)
        }
        inputs = dict.fromkeys(self.switches.values(), TensorType(DType.F32, ()))
        types = {**graph.types, **inputs}
        dynamic = graph.dynamic
        if dynamic is not None:
            ports = (SizedPort(name, type.dtype, (), ()) for name, type in inputs.items())
            dynamic = replace(dynamic, inputs=(*dynamic.inputs, *ports))
        widened = replace(graph, inputs=(*graph.inputs, *inputs), types=types, dynamic=dynamic)
        self.rewriter = Rewriter(widened)

    def run(self) -> Graph:
        """The rewritten graph."""
        for node in self.graph.nodes:
            item = self.found.get(node.output)
            if item is not None:
                if item.rounds_states:
                    self._recurrence(node, item)
                    continue
                data, *others = node.inputs
                for kind in self.kinds:
                    if (item.identity, kind) in self.switches:
                        data = self._switched(data, item, kind, node)
                node = replace(node, inputs=(data, *others))
            self.rewriter.keep(node)
        return self.rewriter.finish()

    def _has(self, item: Contraction, kind: Precision) -> bool:
        if item.data in self.graph.constants:
            return False
        if item.rounds_states:
            return item.has(kind)
        return kind in NARROW or (item.quantisable and item.data_identity in self.ranges)

    def _recurrence(self, node: Node, item: Contraction) -> None:
        emit, key = self.rewriter.emit, (item.identity, Precision.INT8)
        if key not in self.switches:
            self.rewriter.keep(node)
            return
        own = emit(node.operator, node.inputs, node.attributes, like=node)
        rounded = rounded_recurrence(node, self.graph, self.rewriter)
        other = emit(node.operator, rounded.inputs, rounded.attributes, like=node)
        share = emit("mul", (emit("sub", (other, own), like=node), self.switches[key]), like=node)
        emit("add", (own, share), like=node, output=node.output)

    def _switched(self, name: str, item: Contraction, kind: Precision, like: Node) -> str:
        emit, switch = self.rewriter.emit, self.switches[item.identity, kind]
        rounded = self._rounded(name, item, kind, like)
        difference = emit("sub", (rounded, name), like=like)
        return emit("add", (name, emit("mul", (difference, switch), like=like)), like=like)

    def _rounded(self, name: str, item: Contraction, kind: Precision, like: Node) -> str:
        emit = self.rewriter.emit
        if kind in NARROW:
            narrow = emit("cast", (name,), {"to": NARROW[kind].value}, like=like)
            return emit("cast", (narrow,), {"to": DType.F32.value}, like=like)
        form = Quantisation.of(*self.ranges[item.data_identity])
        parameters = (
            self.rewriter.constant(np.asarray(np.float32(form.scale)), f"{name}_scale"),
            self.rewriter.constant(np.asarray(np.uint8(form.zero_point)), f"{name}_zero_point"),
        )
        narrow = emit("quantize", (name, *parameters), {"to": DType.U8.value}, like=like)
        return emit("dequantize", (narrow, *parameters), {"to": DType.F32.value}, like=like)
