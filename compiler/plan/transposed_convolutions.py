"""Pass: transposed convolutions in the forms that kernels know best.

- With strides of one it is a convolution with the kernel turned round (Dumoulin and Visin, 4.2).
- With one spatial axis it gets a second one of one row.
- Where output channels fill few lanes of their blocks, a convolution computes all phases of the
  strides as channels, whose results are then interleaved.
- Else the result is as long as a whole number of phases, and what is too much cut off.

Weights that are no constants stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute


def run(graph: Graph, block: int | None) -> Graph:
    """The graph with rewritten transposed convolutions; `block` is the number of lanes."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        node = rewriter.resolve(node)
        constants = all(not name or name in rewriter.constants for name in node.inputs[1:])
        if node.operator == "conv_transpose" and constants:
            _Rewrite(rewriter, node, block or 1).run()
        else:
            rewriter.keep(node)
    return rewriter.finish()


INTERLEAVES = 1.25  # times the products saved are worth moving the result once more


class _Rewrite:
    """One node's rewrite; its data may have got another row axis."""

    def __init__(self, rewriter: Rewriter, node: Node, block: int) -> None:
        self.rewriter, self.node, self.block = rewriter, node, block
        self.attributes = complete_attributes(node)
        self.groups = self.attributes.integer("groups")
        self.shape = self.attributes.integers("shape")
        self.data = node.inputs[0]
        self.weight = rewriter.constants[node.inputs[1]]
        self.windows = read_windows(self.attributes, self.weight.shape[2:])

    def run(self) -> None:
        windows = self.windows
        if all(stride == 1 for stride in windows.strides):
            self._as_convolution()
            return
        if windows.rank == 1:
            self._with_rows()
        if self._fills_blocks_by_phases():
            self._interleaved()
            return
        strides = self.windows.strides
        whole = [-(-o // s) * s for o, s in zip(self.shape, strides, strict=True)]
        if tuple(whole) == self.attributes["shape"]:
            self.rewriter.keep(self.node)
            return
        result = self._emit(
            "conv_transpose",
            self.weight,
            {**_steps(self.windows), "groups": self.groups, "shape": tuple(whole)},
        )
        self._finish(result, [0] * len(whole))

    def _fills_blocks_by_phases(self) -> bool:
        """Phases as channels save products of empty lanes, though all of them get as many taps."""
        windows, outputs = self.windows, self.weight.shape[1]
        if self.groups > 1 or any(dilation > 1 for dilation in windows.dilations):
            return False
        steps = (-(-k // s) for k, s in zip(windows.kernel, windows.strides, strict=True))
        together = self._padded(outputs * math.prod(windows.strides)) * math.prod(steps)
        return self._padded(outputs) * math.prod(windows.kernel) > INTERLEAVES * together

    def _padded(self, channels: int) -> int:
        return -(-channels // self.block) * self.block

    def _as_convolution(self) -> None:
        """y[o] = sum over k of x[o + begin - k * dilation] * w[k], the taps in reverse."""
        windows, weight = self.windows, self.weight
        turned = np.flip(weight, tuple(range(2, weight.ndim)))
        inputs = weight.shape[0] // self.groups
        by_group = turned.reshape(self.groups, inputs, *weight.shape[1:])
        filters = by_group.swapaxes(1, 2).reshape(-1, inputs, *windows.kernel)
        begins, ends = [], []
        for axis, extent in enumerate(self.shape):
            reach = windows.reach(axis)
            begins.append(reach - 1 - windows.begins[axis])
            ends.append(extent + reach - 1 - begins[-1] - self._extent(axis))
        given = _steps(replace(windows, begins=tuple(begins), ends=tuple(ends)))
        self._finish(self._emit("conv", filters, {**given, "groups": self.groups}), [0] * len(ends))

    def _with_rows(self) -> None:
        """One row: [N, C, W] -> [N, C, 1, W]."""
        batch, channels, columns = self.rewriter.types[self.data].shape
        shape: dict[str, Attribute] = {"shape": (batch, channels, 1, columns)}
        self.data = self.rewriter.emit("reshape", (self.data,), shape, like=self.node)
        self.weight, self.shape = self.weight[:, :, None], (1, *self.shape)
        old = self.windows
        self.windows = Windows(
            (1, *old.kernel),
            (1, *old.strides),
            (0, *old.begins),
            (0, *old.ends),
            (1, *old.dilations),
        )

    def _interleaved(self) -> None:
        """Channels (output, phase..), each a convolution with the taps of the phase in reverse.

        With o + begin = j * stride + phase, y[o] = sum over t of x[j - t] * w[phase + t * stride].
        """
        windows, rank = self.windows, self.windows.rank
        strides = windows.strides
        inputs, outputs = self.weight.shape[:2]
        steps = [-(-taps // s) for taps, s in zip(windows.kernel, strides, strict=True)]
        pads = [(0, t * s - k) for t, s, k in zip(steps, strides, windows.kernel, strict=True)]
        padded = np.pad(self.weight, [(0, 0), (0, 0), *pads])
        pairs = [item for pair in zip(steps, strides, strict=True) for item in pair]
        split = padded.reshape(inputs, outputs, *pairs)
        split = np.flip(split, tuple(range(2, 2 + 2 * rank, 2)))
        phases, taps = range(3, 3 + 2 * rank, 2), range(2, 2 + 2 * rank, 2)
        filters = split.transpose(1, *phases, 0, *taps).reshape(-1, inputs, *steps)
        begins, ends, first, counts = [], [], [], []
        for axis, extent in enumerate(self.shape):
            begin, stride = windows.begins[axis], strides[axis]
            start, stop = begin // stride, (begin + extent - 1) // stride + 1
            begins.append(steps[axis] - 1 - start)
            ends.append(stop - self._extent(axis))
            first.append(begin - start * stride)
            counts.append(stop - start)
        every = math.prod(strides)
        pads_of: dict[str, Attribute] = {"pads": (*begins, *ends)}
        channels = self._emit("conv", filters, pads_of, every)
        batch = self.rewriter.types[self.data].shape[0]
        apart = self._reshaped(channels, (batch, outputs, *strides, *counts))
        order = [item for axis in range(rank) for item in (2 + rank + axis, 2 + axis)]
        perm: dict[str, Attribute] = {"perm": (0, 1, *order)}
        turned = self.rewriter.emit("transpose", (apart,), perm, like=self.node)
        whole = [count * stride for count, stride in zip(counts, strides, strict=True)]
        self._finish(self._reshaped(turned, (batch, outputs, *whole)), first)

    def _emit(
        self, operator: str, weight: Array, attributes: dict[str, Attribute], repeats: int = 1
    ) -> str:
        """The operator on the data, with this weight and the bias repeated for each channel."""
        rewriter, node = self.rewriter, self.node
        operands = [self.data, rewriter.constant(weight, node.inputs[1])]
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = node.inputs[2]
            if repeats > 1:
                bias = rewriter.constant(np.repeat(rewriter.constants[bias], repeats), bias)
            operands.append(bias)
        given = {key: node.attributes[key] for key in ("accumulator",) if key in node.attributes}
        return rewriter.emit(operator, tuple(operands), {**attributes, **given}, like=node)

    def _finish(self, result: str, first: Sequence[int]) -> None:
        """Cut the result's shape out, from `first` on, and give it the node's name."""
        rewriter, type = self.rewriter, self.rewriter.types[self.node.output]
        extents = rewriter.types[result].shape
        wanted = (*extents[:2], *self.shape)
        if extents != wanted:
            cut: dict[str, Attribute] = {
                "starts": (0, 0, *first),
                "steps": (1,) * len(wanted),
                "shape": wanted,
            }
            result = rewriter.emit("slice", (result,), cut, like=self.node)
        if wanted != type.shape:
            result = self._reshaped(result, type.shape)
        rewriter.forward(self.node.output, result)

    def _reshaped(self, name: str, shape: tuple[int, ...]) -> str:
        return self.rewriter.emit("reshape", (name,), {"shape": shape}, like=self.node)

    def _extent(self, axis: int) -> int:
        return self.rewriter.types[self.data].shape[2 + axis]


def _steps(windows: Windows) -> dict[str, Attribute]:
    """The attributes of these windows."""
    return {
        "strides": windows.strides,
        "pads": (*windows.begins, *windows.ends),
        "dilations": windows.dilations,
    }
