"""ONNX model -> Graph: reads the file, settles the inputs' types and converts every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

import tunefarm.compiler.frontend.operators  # noqa: F401  # registers converters, and their operators
from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.given_results import check_given
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.import_step import Frame
from tunefarm.compiler.frontend.model_importer import ModelImporter, refuse_sparse
from tunefarm.compiler.frontend.model_inputs import (
    fixed_array,
    input_types,
    named_dimensions,
    result_dimensions,
)
from tunefarm.compiler.frontend.name_scope import NameScope
from tunefarm.compiler.frontend.read_model import check_text, read_model, read_opsets
from tunefarm.compiler.frontend.shape_hints import graph_hints
from tunefarm.compiler.frontend.structured_ports import (
    input_structure,
    structured_input,
    structured_output,
)
from tunefarm.compiler.frontend.structured_values import GrowingSequence, StackedSequence
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.widen_places import widen_places
from tunefarm.compiler.limits import Allowance, Limits
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import (
    FixedInput,
    Shapes,
    check_lists,
    fixed_inputs,
    open_shapes,
)
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.structure import FixedPort, Structure, StructuredPort
from tunefarm.compiler.types.tensor_type import Array


def import_onnx(
    path: str | Path,
    shapes: Shapes | None = None,
    limits: Limits | None = None,
) -> Graph:
    """Import an ONNX file.

    `shapes` fixes or bounds symbolic dimensions, by input or by symbol, and fixes the contents of
    inputs, which are then no inputs of the graph any more. External data is found as in
    `tunefarm.compiler.frontend.external_data`. `limits` are this machine's if None.

    Raises ImportModelError for everything that is wrong with the file or the arguments:
    UnsupportedOperatorError, which names all unsupported operators of the model at once, and
    ShapeError for shapes that do not fit or are not known before run time, and LimitError for what
    goes beyond `limits`.
    """
    file, allowance = Path(path), Allowance(limits)
    model = read_model(file, allowance)
    check_text(model)
    return _import(model, shapes or {}, ExternalData.of(file), allowance)


def import_model_proto(
    model: onnx.ModelProto,
    shapes: Shapes | None = None,
    base_dir: Path | None = None,
    limits: Limits | None = None,
) -> Graph:
    """Import a model that is already parsed; `base_dir` is the folder of its external data.

    Raises as `import_onnx` does.
    """
    check_text(model)
    external = None if base_dir is None else ExternalData((base_dir,))
    return _import(model, shapes or {}, external, Allowance(limits))


def _import(
    model: onnx.ModelProto,
    shapes: Shapes,
    external: ExternalData | None,
    allowance: Allowance,
) -> Graph:
    check_lists(shapes)
    opsets = read_opsets(model)
    graph = model.graph
    refuse_sparse(graph)
    _check_names("input", [info.name for info in graph.input])
    _check_names("output", [info.name for info in graph.output])
    builder = GraphBuilder(graph.name or "model", allowance)
    builder.by_onnxruntime = "com.microsoft" in opsets
    scope = NameScope(builder, external)
    scope.add_initializers(graph.initializer)
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = [info for info in graph.input if info.name not in initialized]
    importer = ModelImporter(builder, model.functions, external)
    fixed = _define_fixed(fixed_inputs(shapes), inputs, builder, scope)
    runtime = [info for info in inputs if info.name not in fixed]
    shapes = open_shapes(shapes)
    results = result_dimensions([*graph.output, *graph.value_info], runtime, shapes)
    asked = {name: shape for name, shape in shapes.items() if name not in results}
    structured, named = _define_inputs(runtime, asked, builder, scope)
    hints = graph_hints(graph, {**named, **results})
    importer.convert_nodes(graph.node, Frame(scope, opsets, hints=hints))
    importer.problems.raise_if_any()
    outputs, structured_outputs = _outputs(graph, scope)
    for info in graph.output:
        check_given(info, scope.lookup(info.name), results, builder)
    if not outputs:
        raise UnsupportedOperatorError(
            "the outputs of the model are empty sequences and optionals, and nothing is computed"
        )
    finished = widen_places(builder.finish(outputs))
    texts = (*builder.text_inputs, *(n for n, v in outputs if v.dtype is DType.STRING))
    words = builder.words.all if texts else ()
    ports = tuple(FixedPort.of(name, array) for name, array in fixed.items())
    structure = Structure(structured, structured_outputs, texts, words, ports)
    return replace(finished, structure=structure)


def _define_inputs(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Shapes,
    builder: GraphBuilder,
    scope: NameScope,
) -> tuple[tuple[StructuredPort, ...], dict[str, Dimension]]:
    """Define tensors, and the sequences and optionals that are made of them, which are returned.

    So are the sizes of dimensions with names.
    """
    taken_apart = input_structure(inputs, shapes)
    types = input_types(taken_apart.tensors, taken_apart.shapes, builder.allowance)
    values = {name: builder.input(name, item.type, item.dims) for name, item in types.items()}
    ports = {port.name: port for port in taken_apart.ports}
    for info in inputs:
        port = ports.get(info.name)
        value = values[info.name] if port is None else structured_input(port, info, values)
        scope.define(info.name, value)
    return taken_apart.ports, named_dimensions(taken_apart.tensors, types)


def _define_fixed(
    given: Mapping[str, FixedInput],
    inputs: Sequence[onnx.ValueInfoProto],
    builder: GraphBuilder,
    scope: NameScope,
) -> dict[str, Array]:
    """Define inputs whose contents are fixed as constants, which are returned."""
    infos = {info.name: info for info in inputs}
    found: dict[str, Array] = {}
    for name, item in given.items():
        if name not in infos:
            known = ", ".join(map(repr, infos)) or "none"
            raise ImportModelError(f"the model has no input {name!r} to fix (its inputs: {known})")
        found[name] = fixed_array(infos[name], item)
        value = builder.constant(found[name])
        scope.define(name, value)
        builder.name_value(value, name)
    return found


def _check_names(what: str, names: Sequence[str]) -> None:
    if what == "output" and not names:
        raise ImportModelError("the model has no outputs", hint="the file may be truncated")
    if not all(names):
        raise ImportModelError(f"an {what} of the model has no name")
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise ImportModelError(f"the {what} {name!r} of the model is there twice")


def _outputs(
    graph: onnx.GraphProto, scope: NameScope
) -> tuple[list[tuple[str, Value]], tuple[StructuredPort, ...]]:
    """The outputs that are tensors or parts of others, and what others are made of."""
    outputs: list[tuple[str, Value]] = []
    structured: list[StructuredPort] = []
    for info in graph.output:
        value = scope.lookup(info.name)
        if value is None:
            raise ImportModelError(f"the output {info.name!r} of the model is empty")
        if isinstance(value, Value):
            outputs.append((info.name, value))
            continue
        if isinstance(value, GrowingSequence | StackedSequence):
            raise UnsupportedOperatorError(
                f"the output {info.name!r} is a sequence whose length is computed at run time",
                hint="join its tensors with ConcatFromSequence",
            )
        port, members = structured_output(info.name, value)
        structured.append(port)
        outputs.extend(members)
    return outputs, tuple(structured)
