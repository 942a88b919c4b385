"""Parts of a model as models of their own: some of its nodes, with recorded values as inputs.

`tune reduce` looks for the smallest part that still fails. A value that a part reads and does not
compute is an input of the part, or an initializer where it follows from no input of the model or
is small and made of integers, as shapes and axes are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import external_data_helper, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.declared_ports import DeclaredPort, declared_port
from tunefarm.compiler.frontend.read_model import check_text, in_order, names_read, read_model
from tunefarm.compiler.frontend.tensors import initializers
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.files import replacing

_FEW_INTEGERS = 64
"""Elements that a tensor of integers may have for an initializer: shapes, axes, pads."""


def whole_model(path: Path) -> onnx.ModelProto:
    """The model of a file with its external data in it and its nodes in order.

    Raises ImportModelError for a file that is no model.
    """
    model = read_model(path, ResourceBudget())
    check_text(model)
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ImportModelError(f"the external data of {path} cannot be read: {error}") from error
    nodes = [*in_order(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def with_types(model: onnx.ModelProto, arrays: Mapping[str, Array] | None = None) -> None:
    """Add the types of intermediate values, as far as ONNX's shape inference finds them.

    With `arrays` the model's inputs have their shapes.
    """
    for info in model.graph.input:
        if arrays is not None and info.name in arrays:
            info.CopyFrom(_info(info.name, arrays[info.name]))
    try:
        inferred = shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return
    del model.graph.value_info[:]
    model.graph.value_info.extend(inferred.graph.value_info)


def declared_values(model: onnx.ModelProto) -> list[DeclaredPort]:
    """The tensors among the intermediate values whose types are in the model."""
    infos = [*model.graph.value_info, *model.graph.output]
    return [declared_port(info) for info in infos if info.type.WhichOneof("value") == "tensor_type"]


def with_all_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, its intermediate values being outputs too."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    known = {info.name for info in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name]
    infos = {info.name: info for info in model.graph.value_info}
    wide.graph.output.extend(
        infos.get(name, onnx.ValueInfoProto(name=name)) for name in names if name not in known
    )
    return wide


def write_model(model: onnx.ModelProto, path: str) -> None:
    """Write a model with all that belongs to it to one file, as a whole."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(model.SerializeToString())


def reference_outputs(path: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of ONNX's reference evaluator for a file, by name."""
    evaluator = ReferenceEvaluator(path)
    results = evaluator.run(None, dict(inputs))
    assert isinstance(results, list)
    return dict(zip(evaluator.output_names, results, strict=True))


class ModelParts:
    """The parts of a model: `nodes` by number are what a part may have.

    `values` are recorded arrays of the model's inputs and intermediate values.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array]) -> None:
        self.nodes: Sequence[onnx.NodeProto] = model.graph.node
        self._model, self._values = model, values
        self._initializers = initializers(model.graph)
        graph = model.graph
        self._infos = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
        self._results = [info.name for info in graph.output]
        inputs = [info for info in graph.input if info.name not in self._initializers]
        self._inputs = {info.name for info in inputs}
        self._symbols = {
            dimension.dim_param
            for info in inputs
            for dimension in info.type.tensor_type.shape.dim
            if dimension.dim_param
        }
        self._reads = [{name for name in names_read(node) if name} for node in self.nodes]
        self._makers = {
            name: number for number, node in enumerate(self.nodes) for name in node.output if name
        }
        self._computed = set(self._inputs)  # follows from an input
        for node, reads in zip(self.nodes, self._reads, strict=True):
            if reads & self._computed:
                self._computed.update(node.output)

    @property
    def constants(self) -> set[int]:
        """The nodes that follow from no input and whose results are recorded."""
        return {
            number
            for number, node in enumerate(self.nodes)
            if not any(name in self._computed for name in node.output)
            and all(name in self._values for name in node.output if name)
        }

    def outputs(self, kept: Collection[int]) -> list[str]:
        """What a part of these nodes computes for others: results of the model, and values that
        none of the nodes reads but another node does."""
        inside = set[str]().union(*(self._reads[number] for number in kept))
        outside = set[str]().union(*self._reads, self._results)
        return [
            name
            for number in sorted(kept)
            for name in self.nodes[number].output
            if name in self._results or (name in outside and name not in inside)
        ]

    def needed(self, kept: Collection[int], outputs: Iterable[str]) -> tuple[int, ...]:
        """Those of the nodes on which the outputs depend, in order."""
        found, left = set[int](), list(outputs)
        while left:
            number = self._makers.get(left.pop())
            if number is not None and number in kept and number not in found:
                found.add(number)
                left += self._reads[number]
        return tuple(sorted(found))

    def part(
        self, kept: Sequence[int], outputs: Sequence[str]
    ) -> tuple[onnx.ModelProto, dict[str, Array]] | None:
        """The model of these nodes with these outputs, and its inputs.

        None if it needs a value that is not recorded.
        """
        nodes = [self.nodes[number] for number in kept]
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for number in kept for name in sorted(self._reads[number]))
        cut = [name for name in read if name not in made and name not in self._initializers]
        if not all(name in self._values for name in cut):
            return None
        inputs = {name: self._values[name] for name in cut if self._is_input(name)}
        graph = helper.make_graph(
            nodes,
            self._model.graph.name or "model",
            [self._typed(name) for name in inputs],
            [self._typed(name) for name in outputs],
        )
        for name in read:
            if name in self._initializers:
                tensor = self._initializers[name]
                dense = isinstance(tensor, onnx.TensorProto)
                (graph.initializer if dense else graph.sparse_initializer).append(tensor)
            elif name in cut and name not in inputs:
                graph.initializer.append(numpy_helper.from_array(self._values[name], name))
        whole = self._model
        model = helper.make_model(
            graph,
            ir_version=whole.ir_version,
            opset_imports=whole.opset_import,
            functions=_called(nodes, whole.functions),
        )
        return model, inputs

    def _is_input(self, name: str) -> bool:
        """Whether a value that is cut is an input of the part."""
        array = self._values[name]
        few = array.dtype.kind in "iub" and array.size <= _FEW_INTEGERS
        return name in self._inputs or (name in self._computed and not few)

    def _typed(self, name: str) -> onnx.ValueInfoProto:
        """The type of a value: of its array, with the symbols that the model's inputs have."""
        info, array = self._infos.get(name), self._values.get(name)
        if array is None or name in self._inputs:
            return onnx.ValueInfoProto(name=name) if info is None else info
        made = _info(name, array)
        known = [] if info is None else info.type.tensor_type.shape.dim
        for dimension, inferred in zip(made.type.tensor_type.shape.dim, known, strict=False):
            if len(known) == array.ndim and inferred.dim_param in self._symbols:
                dimension.dim_param = inferred.dim_param
        return made


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _called(
    nodes: Sequence[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]
) -> list[onnx.FunctionProto]:
    """The functions that the nodes call, and those that these call."""
    known = {(function.domain, function.name): function for function in functions}
    found = set[tuple[str, str]]()
    while nodes:
        own = {(node.domain, node.op_type) for node in _with_inner(nodes)} & known.keys()
        nodes = [node for key in own - found for node in known[key].node]
        found |= own
    return [function for key, function in known.items() if key in found]


def _with_inner(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _with_inner(graph.node)
