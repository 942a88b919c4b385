"""Pass: contractions that a plan wants in int8 get quantised operands, in the form of QDQ models.

    y = conv(x, w, b)   ->   y = conv(dequantize(quantize(x)), dequantize(w_i8), dequantize(b_i32))

Activations are u8 with a scale and a zero point, weights i8 with a scale for each output channel,
biases i32 at the product of both scales. A value is quantised once for all its readers; where all
of them can do with 8 bits (int8 contractions, additions, pools, joins of channels) they read it
dequantised, so that f32 is never stored. What only moves elements (max_pool, reshape, transpose,
concat) in front of a quantised value is done in 8 bits as well. What lies after the last such
contraction stays f32.

Recurrences have weights of i8 with a scale for each column; they round their states to 8 bits by
the range of each step, so that these need no calibration.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers
from tunefarm.compiler.operators.recurrence import BATCH, RECURRENCE, SCALES, SUMS
from tunefarm.compiler.plan.precision.contractions import (
    Contraction,
    contractions,
    identities,
    rows_of,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Array

_Doubles = npt.NDArray[np.float64]

MOVES = ("max_pool", "reshape", "transpose", "concat", "slice")
"""Operators whose elements are elements of their operands."""
NARROW_READERS = (*MOVES, "add", "average_pool")
"""Operators that lose nothing by reading 8 bits, besides int8 contractions."""

_U8_STEPS = 255
_I8_LARGEST = 127
_LARGEST_BIAS = float(1 << 30)
_LEAST_SCALE = 2.0**-62
"""The product of two is still a normal number."""
_WEIGHT_CLIPS = np.linspace(0.7, 1.0, 13)
"""Shares of the largest weight of a channel that are tried as its clip."""


@frozen
class Quantisation:
    """How a value is stored in u8: number = (quantised - zero_point) * scale."""

    scale: float
    zero_point: int

    @staticmethod
    def of(low: float, high: float) -> Quantisation:
        """That of the range from `low` to `high`, widened to hold 0 (which padding needs)."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / _U8_STEPS, _LEAST_SCALE)
        scale = float(np.float32(scale))
        return Quantisation(scale, int(np.clip(round(-low / scale), 0, _U8_STEPS)))


def run(graph: Graph, plan: PrecisionPlan) -> Graph:
    """The graph with the plan's int8 contractions quantised.

    Raises SettingsError if the plan's calibration lacks a range that is needed, and for
    contractions that have no int8 form.
    """
    wanted = [item for item in contractions(graph) if plan.of(item.identity) is Precision.INT8]
    if not wanted:
        return graph
    calibration = plan.calibration
    if calibration is None:
        if not all(item.rounds_states for item in wanted):
            raise SettingsError("int8 needs ranges of the values", hint="give --calibration")
        calibration = Calibration("", 0, "", {})
    for item in wanted:
        if not item.quantisable:
            raise SettingsError(f"matmul or conv {item.label} has no int8 form")
    return _Quantiser(graph, wanted, calibration).run()


class _Quantiser:
    def __init__(self, graph: Graph, wanted: list[Contraction], calibration: Calibration) -> None:
        self.graph = graph
        self.rewriter = Rewriter(graph)
        given = [item for item in wanted if not item.rounds_states]
        self.contractions = {item.value: item for item in given}
        self.recurrences = {item.value for item in wanted if item.rounds_states}
        self.readers = consumers(graph)
        self.scales = self._scales(given, calibration)
        self.narrow: dict[str, str] = {}  # value -> its dequantised form
        self.search_clips = calibration.method == "mse"

    def run(self) -> Graph:
        for name in self.graph.inputs:
            self._quantise(name, Node("input", (), name))
        for node in self.graph.nodes:
            if node.output in self.contractions:
                self._contraction(node)
            elif node.output in self.recurrences:
                self.rewriter.keep(
                    rounded_recurrence(
                        self._reading(node), self.graph, self.rewriter, self.search_clips
                    )
                )
            else:
                self.rewriter.keep(self._reading(node))
            self._quantise(node.output, node)
        return self.rewriter.finish()

    def _scales(
        self, wanted: list[Contraction], calibration: Calibration
    ) -> dict[str, Quantisation]:
        """How each value that is quantised is stored: data of contractions, and what is moved."""
        names = identities(self.graph)
        found: dict[str, tuple[float, float]] = {}
        for item in wanted:
            if item.data_identity not in calibration.ranges:
                raise SettingsError(
                    f"the calibration has no range of what {item.label} reads",
                    hint="calibrate this model anew: give --calibration",
                )
            found[item.data] = calibration.ranges[item.data_identity]
        for node in reversed(self.graph.nodes):
            if node.operator not in MOVES or node.output not in found:
                continue
            for name in node.inputs:
                if name in self.graph.constants or not self._reads_narrow(name, found):
                    continue
                own = calibration.ranges.get(names[name], found[node.output])
                low, high = found[node.output]
                found.setdefault(name, (min(low, own[0]), max(high, own[1])))
        return {name: Quantisation.of(low, high) for name, (low, high) in found.items()}

    def _reads_narrow(self, name: str, quantised: Mapping[str, object]) -> bool:
        """Whether every reader of a value can do with 8 bits of it."""
        if name in self.graph.outputs or self.graph.types[name].dtype is not DType.F32:
            return False
        return all(
            (node.output in self.contractions and node.inputs[0] == name)
            or node.operator in NARROW_READERS
            for node in self.readers.get(name, ())
        )

    def _quantise(self, name: str, like: Node) -> None:
        """Append the quantised and the dequantised form of a value, if it is to be quantised."""
        if name not in self.scales:
            return
        quantisation = self.scales[name]
        parameters = [self._constant(np.float32(quantisation.scale), f"{name}_scale")]
        if quantisation.zero_point:
            zero_point = np.uint8(quantisation.zero_point)
            parameters.append(self._constant(zero_point, f"{name}_zero_point"))
        quantised = self._emit("quantize", [name, *parameters], DType.U8, like)
        self.narrow[name] = self._emit("dequantize", [quantised, *parameters], DType.F32, like)

    def _reading(self, node: Node) -> Node:
        """The node with its operands in 8 bits, where all of their readers have them so."""
        inputs = tuple(
            self.narrow[name]
            if name in self.narrow and self._reads_narrow(name, self.scales)
            else name
            for name in node.inputs
        )
        return Node(node.operator, inputs, node.output, node.attributes, node.source)

    def _contraction(self, node: Node) -> None:
        data, weight, *rest = node.inputs
        bias = rest[0] if rest and rest[0] else ""
        axis = self._channel_axis(node)
        weights = self.graph.constants[weight].astype(np.float64)
        biases = self.graph.constants[bias].astype(np.float64) if bias else None
        data_scale = self.scales[data].scale
        scales = weight_scales(weights, axis, search_clips=self.search_clips)
        if biases is not None:  # which must fit i32 at the product of both scales
            least = np.abs(biases) / (data_scale * _LARGEST_BIAS)
            scales = np.maximum(scales, least.astype(np.float32))
        shape = [1] * weights.ndim
        shape[axis] = -1
        rounded = np.rint(weights / scales.astype(np.float64).reshape(shape))
        quantised = np.clip(rounded, -_I8_LARGEST, _I8_LARGEST).astype(np.int8)
        inputs = [
            self.narrow[data],
            self._dequantised(quantised, scales, axis, f"{weight}_i8", node),
        ]
        if biases is not None:
            product = scales * np.float32(data_scale)
            wide = np.rint(biases / product.astype(np.float64)).astype(np.int32)
            inputs.append(self._dequantised(wide, product, 0, f"{bias}_i32", node))
        self.rewriter.keep(
            Node(node.operator, tuple(inputs), node.output, node.attributes, node.source)
        )

    def _channel_axis(self, node: Node) -> int:
        """The axis of the weight that counts output channels."""
        rank = len(self.graph.types[node.inputs[1]].shape)
        if node.operator == "conv":
            return 0
        return rank - 2 if node.attributes.get("transpose_b", False) else rank - 1

    def _dequantised(
        self, values: Array, scales: npt.NDArray[np.float32], axis: int, hint: str, like: Node
    ) -> str:
        """A constant of narrow integers, dequantised channel by channel."""
        behind = (1,) * (values.ndim - axis - 1)
        parameters = scales.reshape(*scales.shape, *behind)  # broadcasts along the axis
        inputs = [self._constant(values, hint), self._constant(parameters, f"{hint}_scale")]
        return self._emit("dequantize", inputs, DType.F32, like)

    def _emit(self, operator: str, inputs: list[str], to: DType, like: Node) -> str:
        return self.rewriter.emit(operator, tuple(inputs), {"to": to.value}, like=like)

    def _constant(self, array: object, hint: str) -> str:
        return self.rewriter.constant(np.asarray(array), hint)


def rounded_recurrence(
    node: Node, graph: Graph, rewriter: Rewriter, search_clips: bool = False
) -> Node:
    """A recurrence of the graph whose recurrent weights are i8, and whose states are rounded."""
    weights = graph.constants[node.inputs[RECURRENCE]].astype(np.float64)
    columns = weights.transpose(0, 2, 3, 1)
    rows = columns.reshape(-1, columns.shape[-1])
    scales = weight_scales(rows, 0, search_clips=search_clips).reshape(columns.shape[:-1])
    rounded = np.rint(weights / scales[:, None].astype(np.float64))
    quantised = np.clip(rounded, -_I8_LARGEST, _I8_LARGEST).astype(np.int8)
    inputs = [*node.inputs, *[""] * (SUMS + 1 - len(node.inputs))]
    hint = node.inputs[RECURRENCE]
    inputs[RECURRENCE] = rewriter.constant(quantised, f"{hint}_i8")
    inputs[SCALES] = rewriter.constant(scales, f"{hint}_scale")
    inputs[SUMS] = rewriter.constant(quantised.sum(axis=1, dtype=np.int32), f"{hint}_sums")
    sizes, number = rows_of(graph, node) or ("", 0)
    attributes = dict(node.attributes)
    if sizes:
        inputs[BATCH], attributes["batch_number"] = sizes, number
    return Node(node.operator, tuple(inputs), node.output, attributes, node.source)


def weight_scales(
    weights: _Doubles, axis: int, *, search_clips: bool = False
) -> npt.NDArray[np.float32]:
    """The scale of each channel along `axis`: of its largest weight, or of the clip that leaves the
    least square error."""
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    largest = np.abs(rows).max(axis=1)
    scales = np.maximum(largest / _I8_LARGEST, _LEAST_SCALE)
    if search_clips:
        errors = [_square_error(rows, scales * clip) for clip in _WEIGHT_CLIPS]
        scales = scales * _WEIGHT_CLIPS[np.argmin(errors, axis=0)]
    found: npt.NDArray[np.float32] = np.maximum(scales, _LEAST_SCALE).astype(np.float32)
    return found


def _square_error(rows: _Doubles, scales: _Doubles) -> _Doubles:
    steps = scales[:, None]
    rounded = np.clip(np.rint(rows / steps), -_I8_LARGEST, _I8_LARGEST) * steps
    errors: _Doubles = np.square(rounded - rows).sum(axis=1)
    return errors
