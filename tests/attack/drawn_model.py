"""A drawn ONNX model under construction: each node is run by onnxruntime as soon as it is drawn.

So shapes, element types and values are known: what onnxruntime refuses and what leaves the range
of sensible numbers is not kept, and operators with steps (argmax, rounding, comparisons) can be
given values without rounding errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.onnxruntime_session import exact_session

Array: TypeAlias = npt.NDArray[Any]

OPSET = 18
MOST_ELEMENTS = 4000  # of a value
LARGEST = 1e4  # magnitude of a float that is kept
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
FRACTION = 64  # exact floats are whole multiples of 1 / FRACTION, and at most EXACT
EXACT = 2.0**14


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model, and onnxruntime's value of each of its names.

    `exact` are names whose values have no rounding error in any implementation.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    values: Mapping[str, Array]
    exact: frozenset[str]

    def proto(self) -> onnx.ModelProto:
        """The model as ONNX has it."""
        return model_proto(
            self.nodes,
            {name: self.values[name] for name in self.inputs},
            {name: self.values[name] for name in self.outputs},
            {name: self.values[name] for name in self.constants},
        )


def model_proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array | None],
    constants: Mapping[str, Array],
    axes: Mapping[str, Sequence[int | str]] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """A model of these nodes; an output that is None has no declared type.

    `axes` are the extents of inputs whose arrays are not of the only shape that they may have.
    """

    def declared(name: str, value: Array) -> onnx.ValueInfoProto:
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_value_info(name, element, (axes or {}).get(name, value.shape))

    graph = helper.make_graph(
        list(nodes),
        "drawn",
        [declared(name, value) for name, value in inputs.items()],
        [
            helper.make_empty_tensor_value_info(name) if value is None else declared(name, value)
            for name, value in outputs.items()
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    others = {node.domain for node in nodes if node.domain}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(o, 1) for o in sorted(others))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, Array], *, optimised: bool = True
) -> list[Array]:
    """The model's outputs; whatever onnxruntime raises."""
    (outputs,) = run_session(model, [inputs], optimised=optimised)
    return outputs


def run_session(
    model: onnx.ModelProto, calls: Sequence[Mapping[str, Array]], *, optimised: bool = True
) -> list[list[Array]]:
    """The model's outputs of each of several calls; whatever onnxruntime raises."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimised:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    session = exact_session(model, options)
    return [[np.asarray(value) for value in session.run(None, dict(call))] for call in calls]


def names_read(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, those of its subgraphs included."""
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    found = {name for graph in inner for item in graph.node for name in names_read(item)}
    made = {name for graph in inner for item in graph.node for name in item.output}
    return {name for name in (*node.input, *(found - made)) if name}


@dataclass(slots=True)
class Drawing:
    """The model so far."""

    rng: random.Random
    values: dict[str, Array] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def extent(self, among: Sequence[int] = EXTENTS) -> int:
        """The size of an axis of a new value."""
        return self.rng.choice(among)

    def array(self, shape: Sequence[int], dtype: str = "float32", *, exact: bool = False) -> Array:
        """Values of order 1; with `exact` multiples of 1/4, few of them equal."""
        rng = np.random.default_rng(self.rng.getrandbits(32))
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if dtype.startswith(("int", "uint")):
            return rng.integers(-9 if dtype.startswith("int") else 0, 10, shape).astype(dtype)
        if exact:
            return (rng.integers(-40, 41, shape) / 4).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)

    def input(self, array: Array, *, exact: bool = False) -> str:
        """A new input of the model."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        return self._keep(name, array, exact)

    def constant(self, array: Array, *, exact: bool = False) -> str:
        """A new initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(name)
        return self._keep(name, array, exact)

    def integers(self, values: Iterable[int]) -> str:
        """A constant vector of int64."""
        return self.constant(np.array(list(values), np.int64))

    def _keep(self, name: str, array: Array, exact: bool) -> str:
        self.values[name] = array
        if exact or array.dtype.kind != "f":
            self.exact.add(name)
        return name

    def node(
        self,
        operator: str,
        *operands: str,
        outputs: int = 1,
        keeps: bool = False,
        captured: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """A node over these values ("" is absent); its first output, "" if it cannot be.

        `keeps` says that results are without rounding errors where the operands are; `captured`
        are values that the subgraphs among the attributes read.
        """
        names = [f"v{len(self.nodes)}{'abcdefgh'[i] if i else ''}" for i in range(outputs)]
        made = helper.make_node(operator, operands, names, **attributes)
        results = self._results(made, {name for name in (*operands, *captured) if name})
        if results is None:
            return ""
        self.nodes.append(made)
        exact = keeps and all(name in self.exact for name in operands if name)
        for name, value in zip(names, results, strict=True):
            self._keep(name, value, exact and is_exact(value))
        return names[0]

    def _results(self, made: onnx.NodeProto, read: set[str]) -> list[Array] | None:
        """What onnxruntime makes of a node that reads these values; None if it is not to be had."""
        used = {name: self.values[name] for name in sorted(read)}
        fixed = {name: used.pop(name) for name in list(used) if name in self.constants}
        model = model_proto([made], used, dict.fromkeys(made.output), fixed)
        try:
            results = run_onnxruntime(model, used, optimised=False)
        except Exception:  # noqa: BLE001  # onnxruntime's errors have no common base
            return None
        return results if all(map(is_sensible, results)) else None

    def pick(self, wanted: Callable[[str, Array], bool]) -> str:
        """One of the values that `wanted` says yes to, later ones more often; "" if none."""
        found = [name for name, value in self.values.items() if wanted(name, value)]
        found = [name for name in found if name not in self.constants]
        if not found:
            return ""
        return found[-1] if self.rng.random() < 0.4 else self.rng.choice(found)

    def floats(self, rank: int = 0, *, exact: bool = False) -> str:
        """A float value of at least that rank; with `exact` one without rounding errors."""

        def wanted(name: str, value: Array) -> bool:
            rounded = exact and name not in self.exact
            return value.dtype.kind == "f" and value.ndim >= rank and not rounded

        found = self.pick(wanted)
        if found:
            return found
        shape = [self.extent() for _ in range(rank or 2)]
        return self.input(self.array(shape, exact=exact), exact=exact)

    def shape(self, name: str) -> tuple[int, ...]:
        """The value's extents."""
        shape: tuple[int, ...] = self.values[name].shape
        return shape

    def like(self, name: str, shape: Sequence[int]) -> str:
        """A new input or constant of the value's element type, of another shape."""
        array = self.array(shape, str(self.values[name].dtype), exact=name in self.exact)
        make = self.input if self.rng.random() < 0.3 else self.constant
        return make(array, exact=name in self.exact)

    def operand(self, name: str) -> str:
        """Something that broadcasts with the value: one like it, or a new one with ones."""
        shape, dtype = self.shape(name), self.values[name].dtype
        others = self.pick(
            lambda other, value: (
                value.dtype == dtype
                and _broadcasts(shape, value.shape)
                and (name not in self.exact or other in self.exact)
            )
        )
        if others and self.rng.random() < 0.5:
            return others
        drop = self.rng.randint(0, len(shape))
        return self.like(name, [1 if self.rng.random() < 0.4 else n for n in shape[drop:]])

    def finished(self) -> Drawn:
        """The model; its outputs are what nothing reads, and sometimes a value that is read."""
        read = {name for node in self.nodes for name in names_read(node)}
        made = [name for node in self.nodes for name in node.output]
        outputs = [name for name in made if name not in read]
        if self.rng.random() < 0.4:
            outputs.append(self.rng.choice(made))
        used = read | set(outputs)
        return Drawn(
            tuple(self.nodes),
            tuple(name for name in self.inputs if name in used),
            tuple(dict.fromkeys(outputs)),
            tuple(name for name in self.constants if name in used),
            self.values,
            frozenset(self.exact),
        )


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def is_sensible(value: Array, *, empty: bool = False) -> bool:
    """Whether a value has some elements (or may be `empty`), not too many, and none too large."""
    if value.size > MOST_ELEMENTS or (value.size == 0 and not empty):
        return False
    return value.dtype.kind != "f" or bool(np.all(np.abs(value) <= LARGEST))


def is_exact(value: Array) -> bool:
    """Whether floats are such multiples as sums of a few have no rounding errors."""
    if value.dtype.kind != "f":
        return True
    scaled = value * FRACTION
    return bool(np.all(scaled == np.round(scaled)) and np.all(np.abs(value) <= EXACT))
