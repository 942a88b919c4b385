"""ONNX model -> Graph: reads the file, settles the inputs' types and converts every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import tunefarm.compiler.frontend.operators  # noqa: F401  # registers converters, and their operators
from tunefarm.compiler.errors import (
    ComputedShapeError,
    ImportModelError,
    LimitError,
    UnsupportedOperatorError,
    warn_of_declared,
)
from tunefarm.compiler.frontend.declared_ports import metadata_of, overridable
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.import_step import Frame
from tunefarm.compiler.frontend.model_importer import ModelImporter
from tunefarm.compiler.frontend.model_inputs import (
    fixed_array,
    input_type,
    input_types,
    most_open_axes,
    named_dimensions,
    names_of_results,
    open_symbols,
    result_dimensions,
    shapes_for,
)
from tunefarm.compiler.frontend.name_scope import NameScope
from tunefarm.compiler.frontend.read_model import check_text, in_order, read_model, read_opsets
from tunefarm.compiler.frontend.shape_hints import check_given, graph_hints, stale_shapes
from tunefarm.compiler.frontend.string_prefix import FoundPrefix, PrefixFinder
from tunefarm.compiler.frontend.structured_values import (
    GrowingSequence,
    StackedSequence,
    input_structure,
    structured_input,
    structured_output,
)
from tunefarm.compiler.frontend.tensors import (
    Initializer,
    element_type,
    initializers,
    read_initializer,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.widen_places import widen_places
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import (
    LOGITS_TO_KEEP,
    Extent,
    FixedInput,
    Shapes,
    fixed_inputs,
    is_name,
    listed,
    open_shapes,
)
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.string_prefix import StringPrefix
from tunefarm.compiler.types.structure import DefaultPort, FixedPort, Structure, StructuredPort
from tunefarm.compiler.types.tensor_type import Array

_ANY_SIZE = (4096, 256)
"""Upper bounds of sizes for which the operators are asked what follows, the second one where a
model is too large with the first."""
_ANY_LENGTH = 2**24
"""The same where no input has two open axes."""


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
    file, allowance = Path(path), ResourceBudget(limits)
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
    return _import(model, shapes or {}, external, ResourceBudget(limits))


def _import(
    model: onnx.ModelProto,
    shapes: Shapes,
    external: ExternalData | None,
    allowance: ResourceBudget,
) -> Graph:
    shapes = listed(shapes)
    read_opsets(model)
    _check_names("input", [info.name for info in model.graph.input])
    _check_names("output", [info.name for info in model.graph.output])
    for defaults in _open_defaults(model):
        try:
            return _graph(model, shapes, external, allowance, defaults)
        except LimitError:
            raise
        except ImportModelError:  # a default must be known, as a shape or a position
            continue
    return _graph(model, shapes, external, allowance, frozenset())


def _open_defaults(model: onnx.ModelProto) -> list[Set[str]]:
    """The defaults that callers may give, and those that are floats: shapes and positions are
    integers."""
    names, tensors = overridable(model), initializers(model.graph)
    floats = {name for name in names if element_type(tensors[name], name).is_float}
    return [found for found in (names, floats if floats < names else None) if found]


def _graph(
    model: onnx.ModelProto,
    shapes: Shapes,
    external: ExternalData | None,
    allowance: ResourceBudget,
    defaults: Set[str],
) -> Graph:
    """The model, whose inputs `defaults` callers may give."""
    sizes = _followed_sizes(model, shapes, external, allowance.limits, defaults)
    given = {**shapes, **sizes}
    try:
        return _Import(model, given, external, allowance, defaults).graph()
    except ComputedShapeError as error:
        if error.names:
            raise
        found = _Import(model, given, external, allowance, defaults)  # no bounds can be given
        found.builder.bounds_lists = True
        try:
            return found.graph()
        except LimitError:  # it is the bounds that are too large, not the model
            raise error from None


def _followed_sizes(
    model: onnx.ModelProto,
    shapes: Shapes,
    external: ExternalData | None,
    limits: Limits,
    defaults: Set[str],
) -> Shapes:
    """The sizes of symbols without any that follow from the operators, as the head size of a cache
    that is joined to keys of known weights: the model is converted for any sizes to see them."""
    inputs = _runtime_inputs(model, shapes, defaults)
    if any(info.type.WhichOneof("value") != "tensor_type" for info in inputs):
        return {}
    infos = [*model.graph.output, *model.graph.value_info]
    results = result_dimensions(infos, inputs, open_shapes(shapes))
    given = {name: shape for name, shape in open_shapes(shapes).items() if name not in results}
    symbols = [name for name in open_symbols(inputs, given) if is_name(name)]
    if not symbols:
        return {}
    found: dict[str, int | Extent] = {}
    bounds = _ANY_SIZE if most_open_axes(inputs, symbols) > 1 else (_ANY_LENGTH, *_ANY_SIZE)
    for high in bounds:
        any_size = {name: found.get(name, Extent(name, 1, high)) for name in symbols}
        trial_shapes = {**shapes, **shapes_for(any_size, inputs, given)}
        allowance = ResourceBudget(replace(limits, bytes=2**60))
        trial = _Import(model, trial_shapes, external, allowance, defaults)
        try:
            trial.convert()
            is_whole = True
        except (ImportModelError, MemoryError):
            is_whole = False
        numbers = trial.builder.run_time.fixed_sizes()
        found |= {name: numbers[name] for name in symbols if name in numbers}
        if is_whole or len(found) == len(symbols):
            break
    return shapes_for(found, inputs, given)


def _runtime_inputs(
    model: onnx.ModelProto, shapes: Shapes, defaults: Set[str]
) -> list[onnx.ValueInfoProto]:
    """The inputs that are neither initializers, but for those with `defaults`, nor fixed."""
    known = (initializers(model.graph).keys() - defaults) | fixed_inputs(shapes).keys()
    return [info for info in model.graph.input if info.name not in known]


class _Import:
    """The import of one model for one set of shapes."""

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: Shapes,
        external: ExternalData | None,
        allowance: ResourceBudget,
        defaults: Set[str],
    ) -> None:
        self._model, self._shapes, self._defaults = model, shapes, defaults
        self._opsets = read_opsets(model)
        self.builder = GraphBuilder(model.graph.name or "model", allowance)
        self.builder.by_onnxruntime = "com.microsoft" in self._opsets
        self._scope = NameScope(self.builder, external)
        self._importer = ModelImporter(self.builder, model.functions, external)
        self._results: dict[str, Dimension] = {}
        self._structured: tuple[StructuredPort, ...] = ()
        self._prefix = StringPrefix()
        self._fixed: dict[str, Array] = {}
        self._kept: dict[str, Value] = {}
        self._external = external

    def convert(self) -> None:
        """Convert every node. Raises ImportModelError for what cannot be."""
        graph, shapes, builder, scope = self._model.graph, self._shapes, self.builder, self._scope
        defaults = self._defaults
        scope.add_initializers(graph, inputs=defaults)
        initialized = initializers(graph).keys() - defaults
        inputs = [info for info in graph.input if info.name not in initialized]
        fixed = fixed_inputs(shapes)
        kept = fixed.pop(LOGITS_TO_KEEP) if _keeps_logits(self._model, shapes) else None
        self._fixed = _define_fixed(fixed, inputs, builder, scope)
        runtime = _runtime_inputs(self._model, shapes, defaults)
        given = open_shapes(shapes)
        self._results = result_dimensions([*graph.output, *graph.value_info], runtime, given)
        asked = {name: shape for name, shape in given.items() if name not in self._results}
        outputs = [info.name for info in graph.output]
        nodes = in_order(graph.node)
        finder = PrefixFinder(nodes, outputs, scope, builder, self._external)
        self._structured, named, found = _define_inputs(runtime, asked, builder, scope, finder)
        self._prefix = found.prefix
        hints = graph_hints(graph, {**named, **self._results})
        frame = Frame(scope, self._opsets, hints=hints)
        self._importer.convert_nodes(found.nodes, frame)
        if kept is not None:
            self._keep_logits(kept, frame)
        try:
            self._importer.problems.raise_if_any()
        except ComputedShapeError as error:
            error.names = self._open_names()
            if error.names:
                bounds = " ".join(f"--shape {name}=1..512" for name in error.names)
                error.hint = f"give bounds to what is computed, as in {bounds}"
            raise

    def _keep_logits(self, given: FixedInput, frame: Frame) -> None:
        """Have the last logits stand for the output of all of them."""
        outputs = self._model.graph.output
        name, node, constants = _kept_logits(outputs, given, self._opsets.get("", 1))
        for constant, array in constants.items():
            self._scope.define(constant, self.builder.constant(array))
        self._importer.convert_nodes([node], frame)
        if isinstance(value := self._scope.lookup(node.output[0]), Value):
            self._kept[name] = value

    def _open_names(self) -> tuple[str, ...]:
        """The file's names for sizes that a run computes, without those that have bounds."""
        graph = self._model.graph
        infos = [*graph.value_info, *graph.output]
        known = {info.name for info in infos} | self._results.keys()
        names = names_of_results(infos, graph.input)
        return tuple(name for name in names if name.isidentifier() and name not in known)

    def graph(self) -> Graph:
        """The model as a graph."""
        self.convert()
        builder = self.builder
        outputs, structured_outputs = _outputs(self._model.graph, self._scope)
        outputs = [(name, self._kept.get(name, value)) for name, value in outputs]
        for info in self._model.graph.output:
            check_given(info, self._scope.lookup(info.name), self._results, builder)
        if not outputs:
            raise UnsupportedOperatorError(
                "the outputs of the model are empty sequences and optionals, and nothing is "
                "computed"
            )
        declared = (info for info in self._model.graph.output if info.name not in self._kept)
        if stale := stale_shapes(declared, dict(outputs)):
            warn_of_declared(f"the file of the model {builder.name!r} declares the outputs {stale}")
        finished = widen_places(builder.finish(outputs))
        texts = (*builder.text_inputs, *(n for n, v in outputs if v.dtype is DType.STRING))
        words = builder.words.all if texts else ()
        ports = tuple(FixedPort.of(name, array) for name, array in self._fixed.items())
        open_defaults = tuple(
            self._default(name, tensor)
            for name, tensor in initializers(self._model.graph).items()
            if name in self._defaults and name not in self._fixed
        )
        structure = Structure(
            self._structured, structured_outputs, texts, words, ports, open_defaults, self._prefix
        )
        return replace(finished, structure=structure, metadata=metadata_of(self._model))

    def _default(self, name: str, tensor: Initializer) -> DefaultPort:
        array = read_initializer(tensor, name, self._external, self.builder.allowance)
        return DefaultPort.of(name, array)


def _define_inputs(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Shapes,
    builder: GraphBuilder,
    scope: NameScope,
    finder: PrefixFinder,
) -> tuple[tuple[StructuredPort, ...], dict[str, Dimension], FoundPrefix]:
    """Define tensors, and the sequences and optionals that are made of them, which are returned.

    So are the sizes of dimensions with names, and the operators of strings that come first, whose
    results are tensors like these and stand for the strings that nobody else reads.
    """
    taken_apart = input_structure(inputs, shapes)
    types = input_types(taken_apart.tensors, taken_apart.shapes, builder.allowance)
    texts = {info.name: types[info.name].sizes for info in inputs if _is_text(info)}
    found = finder.find(inputs, texts)
    unread = {port.name for port in found.prefix.ports}
    tensors = {name: item for name, item in types.items() if name not in unread}
    for name, (dtype, sizes) in found.results.items():
        tensors[found.names[name]] = input_type(name, dtype, sizes, builder.allowance)
    values = {name: builder.input(name, item.type, item.dims) for name, item in tensors.items()}
    ports = {port.name: port for port in taken_apart.ports}
    for info in inputs:
        port = ports.get(info.name)
        if info.name not in unread:
            value = values[info.name] if port is None else structured_input(port, info, values)
            scope.define(info.name, value)
    for name, tensor in found.names.items():
        scope.define(name, values[tensor])
    return taken_apart.ports, named_dimensions(taken_apart.tensors, types), found


def _is_text(info: onnx.ValueInfoProto) -> bool:
    return info.type.tensor_type.elem_type == onnx.TensorProto.STRING


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


# Logits of the last positions alone, for a model that computes those of all.
#
# `logits_to_keep` is an input of decoders that are exported with it (transformers names it so).
# Given for a model without one, it stands for a Slice behind the output of logits; the graph then
# moves the selection to where rows are computed apart (`tunefarm.compiler.graph.select_early`).


_KEPT = "%logits_to_keep"
_ATTRIBUTES_UNTIL = 9
"""Opsets in which the places of a Slice are attributes."""


def _keeps_logits(model: onnx.ModelProto, shapes: Shapes) -> bool:
    """Whether the caller asks for the last logits of a model that has no input for that."""
    names = (info.name for info in model.graph.input)
    return LOGITS_TO_KEEP in fixed_inputs(shapes) and LOGITS_TO_KEEP not in names


def _kept_logits(
    outputs: Iterable[onnx.ValueInfoProto], given: FixedInput, opset: int
) -> tuple[str, onnx.NodeProto, Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]]:
    """The output of logits, the node that selects the last of them, and its constants, by name.

    Raises ImportModelError where there is no such output, and for a number that is none.
    """
    names = [info.name for info in outputs]
    logits = [name for name in names if "logits" in name] or names
    if len(logits) != 1:
        raise ImportModelError(
            f"the model has no input {LOGITS_TO_KEEP!r}, and no output that is named logits "
            f"(its outputs: {', '.join(map(repr, names))})"
        )
    array = given.array
    if array.size != 1 or array.dtype.kind not in "iu" or array.item() < 1:
        raise ImportModelError(f"{LOGITS_TO_KEEP} is a number of positions, 1 or more, not {given}")
    places = {"starts": [-int(array.item())], "ends": [np.iinfo(np.int64).max], "axes": [-2]}
    if opset <= _ATTRIBUTES_UNTIL:
        node = helper.make_node("Slice", [logits[0]], [_KEPT], _KEPT)
        node.attribute.extend(helper.make_attribute(*place) for place in places.items())
        return logits[0], node, {}
    constants = {f"{_KEPT}.{name}": np.array(value) for name, value in places.items()}
    node = helper.make_node("Slice", [logits[0], *constants], [_KEPT], _KEPT)
    return logits[0], node, constants
