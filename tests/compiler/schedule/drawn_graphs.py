"""Drawing small graphs with Hypothesis: nodes, values for their inputs, and the kernels they give.

Extents are 1, 2, 7, 13, 97 and multiples of the vector lanes; a drawn graph that fuses into several
kernels gives a case for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import assume
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import memory_of
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, JoinCall, KernelCall, ViewCall
from tunefarm.compiler.kernels.printer import format_kernel
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType

MOST_POINTS = 2**17  # of a kernel's iteration space
Shape = tuple[int, ...]
SPECIAL = st.sampled_from([False, False, False, True])


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """A kernel, its inputs and what it must give."""

    kernel: FusedKernel
    inputs: dict[str, Array]
    expected: Array

    def __repr__(self) -> str:
        return format_kernel(self.kernel)


class Chain:
    """A small graph under construction, with values for its inputs.

    With `special`, NaN and infinities are among them.
    """

    def __init__(self, special: bool = False) -> None:
        self.special = special
        self.types: dict[str, TensorType] = {}
        self.values: dict[str, Array] = {}
        self.constants: set[str] = set()
        self.nodes: list[Node] = []

    def input(
        self,
        shape: Sequence[int],
        dtype: DType = DType.F32,
        *,
        constant: bool = False,
        near_one: bool = False,
    ) -> str:
        name = f"x{len(self.values)}"
        self.types[name] = TensorType(dtype, tuple(shape))
        rng = np.random.default_rng(len(self.values))
        values: npt.NDArray[Any]
        if near_one:
            values = rng.uniform(0.9, 1.1, shape)
        elif dtype.is_float:
            values = rng.standard_normal(shape)
        elif dtype is DType.BOOL:
            values = rng.integers(0, 2, shape)
        else:
            values = rng.integers(-9 if dtype.is_signed else 0, 10, shape)
        if self.special and dtype.is_float and not constant:
            picks = rng.integers(0, 40, shape)
            for pick, value in enumerate((np.nan, np.inf, -np.inf)):
                values = np.where(picks == pick, value, values)
        self.values[name] = np.asarray(values, dtype.numpy)
        if constant:
            self.constants.add(name)
        return name

    def apply(self, operator: str, *operands: str, **attributes: Attribute) -> str:
        name = f"v{len(self.nodes)}"
        node = Node(operator, operands, name, MappingProxyType(attributes))
        types = tuple(self.types[operand] if operand else None for operand in operands)
        self.types[name] = infer_type(node, types)
        self.nodes.append(node)
        return name

    def shape(self, value: str) -> Shape:
        return self.types[value].shape

    def cases(self) -> list[Case]:
        """The kernels of the graph, whose only output is the last node's."""
        graph = Graph(
            "drawn",
            tuple(name for name in self.values if name not in self.constants),
            (self.nodes[-1].output,),
            tuple(self.nodes),
            self.types,
            {name: self.values[name] for name in self.values if name in self.constants},
        )
        program = extract_kernels(graph)
        known: dict[str, Array] = {**self.values, **program.constants}
        cases = []
        for call in program.calls:
            if isinstance(call, ViewCall | JoinCall):
                known[call.output] = memory_of(call, program, known)
                continue
            assert isinstance(call, KernelCall)
            names = [buffer.name for buffer in call.kernel.inputs]
            inputs = {name: known[value] for name, value in zip(names, call.inputs, strict=True)}
            assume(_points(call.kernel) <= MOST_POINTS)
            expected = known[call.output] = evaluate_kernel(call.kernel, inputs)
            cases.append(Case(call.kernel, inputs, expected))
        return cases


def _points(kernel: FusedKernel) -> int:
    return max(
        prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes)) for stage in kernel.stages
    )


def reduction_length(kernel: FusedKernel) -> int:
    """The number of terms of the kernel's longest reduction."""
    return max(prod(axis.extent for axis in stage.reduce_axes) for stage in kernel.stages)


def extents(lanes: int, most: int = 97) -> st.SearchStrategy[int]:
    values = {1, 2, 7, 13, 97, lanes, 2 * lanes, 3 * lanes}
    return st.sampled_from(sorted(value for value in values if value <= most))


def shapes(lanes: int, ranks: tuple[int, int], most: int = 2000) -> st.SearchStrategy[Shape]:
    return (
        st.lists(extents(lanes), min_size=ranks[0], max_size=ranks[1])
        .map(tuple)
        .filter(lambda shape: prod(shape) <= most)
    )


def epilogue(draw: st.DrawFn, chain: Chain, value: str) -> None:
    """Pointwise nodes after an anchor: activations, residuals, scales."""
    shape, dtype = chain.types[value].shape, chain.types[value].dtype
    for kind in draw(
        st.sampled_from(
            [(), ("relu",), ("add", "relu"), ("sigmoid", "self"), ("scale",), ("clip",), ("gelu",)]
        )
    ):
        if kind == "add":
            value = chain.apply("add", value, chain.input(shape, dtype))
        elif kind == "scale":
            scale = tuple(extent if axis in (0, 1) else 1 for axis, extent in enumerate(shape))
            value = chain.apply("mul", chain.input(scale, dtype), value)
        elif kind == "self":
            value = chain.apply("mul", chain.nodes[-1].inputs[0], value)
        elif kind == "clip":
            value = chain.apply("clip", value, min=0.0, max=6.0)
        else:
            value = chain.apply(kind, value)
