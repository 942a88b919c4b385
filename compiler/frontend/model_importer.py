"""Walks an ONNX model's nodes in order and converts, evaluates or expands each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from onnx import FunctionProto, GraphProto, NodeProto

from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.foreign_functions import RegisteredFunction
from tunefarm.compiler.frontend.constant_evaluation import (
    can_evaluate,
    evaluate_node,
    is_small_constant,
)
from tunefarm.compiler.frontend.control_flow import control_flow
from tunefarm.compiler.frontend.converter import (
    Converter,
    find_converter,
    find_dynamic_operand,
    find_unlisted_converter,
)
from tunefarm.compiler.frontend.external_data import ExternalData
from tunefarm.compiler.frontend.function_binding import bind, function_for
from tunefarm.compiler.frontend.function_expansion import (
    FunctionBody,
    has_twin,
    local_function,
    schema_function,
    twin_function,
)
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value, checkpoint
from tunefarm.compiler.frontend.import_step import Frame, FunctionKey, ImportStep, name_of
from tunefarm.compiler.frontend.name_scope import NameScope
from tunefarm.compiler.frontend.onnx_node import OnnxNode, decode_attributes
from tunefarm.compiler.frontend.read_model import canonical_domain, in_order
from tunefarm.compiler.frontend.shape_hints import graph_hints, shape_hints
from tunefarm.compiler.frontend.signature import Signature, check_form, check_types
from tunefarm.compiler.frontend.size_arithmetic import evaluate_sizes
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    OptionalValue,
    SequenceValue,
    schema_kind,
)
from tunefarm.compiler.types.denormals import flushed
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Array

_MAX_DEPTH = 40
# What malformed operands make Python and NumPy raise inside a converter.
_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError)

Inputs: TypeAlias = tuple[Entity | None, ...]
Results: TypeAlias = Sequence[Entity | None]


class ModelImporter:
    """Converts nodes into a GraphBuilder; problems are collected, not raised."""

    def __init__(
        self,
        builder: GraphBuilder,
        functions: Iterable[FunctionProto],
        external: ExternalData | None,
    ) -> None:
        self.problems = _Problems()
        self._builder = builder
        self._external = external
        self._count = 0
        self._functions: dict[FunctionKey, FunctionProto] = {
            (canonical_domain(f.domain), f.name, f.overload): f for f in functions
        }

    def convert_nodes(self, nodes: Iterable[NodeProto], frame: Frame) -> None:
        """Convert nodes in order and define their outputs in the frame's scope.

        The outputs of a node with a problem are poisoned, so that the walk goes on without them.
        """
        outer, allowance = (self._builder.source, self._builder.label), self._builder.allowance
        for node in nodes:
            self._count += 1
            allowance.check_nodes("the model", self._count)
            allowance.check_time(f"reading node {name_of(node)!r}")
            name = frame.outer or name_of(node)
            step = ImportStep(node, frame, name, canonical_domain(node.domain))
            self._builder.source, self._builder.label = name, step.label
            if not self._try_convert(step):
                for output in node.output:
                    frame.scope.poison(output)
        self._builder.source, self._builder.label = outer

    def _try_convert(self, step: ImportStep) -> bool:
        try:
            results = self._convert(step)
            if results is not None:
                self._define(step, results)
        except UnsupportedOperatorError as error:
            reason = str(error).removeprefix(f"{step.label}: ")
            self.problems.unsupported(step.operator, step.name, reason)
            return False
        except ImportModelError as error:
            self.problems.error(error)
            return False
        return results is not None

    def _define(self, step: ImportStep, results: Results) -> None:
        for position, output in enumerate(step.node.output):
            if not output:
                continue
            value = results[position] if position < len(results) else None
            if value is None:
                raise UnsupportedOperatorError(f"its output {position} is not supported")
            step.frame.scope.define(output, value)
            if not step.frame.outer and isinstance(value, Value):
                self._builder.name_value(value, output)

    def _convert(self, step: ImportStep) -> Results | None:
        """The node's outputs; None when they depend on a problem that is already recorded."""
        node, scope = step.node, step.frame.scope
        key = (step.domain, node.op_type, node.overload)
        function = self._functions.get(key)
        if function is not None:
            if any(scope.is_poisoned(value) for value in node.input):
                return None
            inputs = tuple(scope.lookup(value) for value in node.input)
            return self._inline(local_function(function, node), inputs, step, key)
        signature = step.signature
        if signature is None:
            convert = find_unlisted_converter(step.domain, node.op_type, step.opset)
            if convert is not None:
                return self._convert_unlisted(convert, step)
        if signature is None or not step.is_supported(signature):
            registered = function_for(step.domain, node.op_type) if step.opset else None
            if registered is not None:
                return self._bind(registered, step)
            raise UnsupportedOperatorError(step.refusal(signature))
        if any(scope.is_poisoned(value) for value in node.input):
            return None
        check_form(node, signature, step.label)
        inputs = tuple(scope.lookup(value) for value in node.input)
        check_types(inputs, signature, step.label)
        return self._convert_operator(inputs, step, signature)

    def _convert_operator(
        self, inputs: Inputs, step: ImportStep, signature: Signature
    ) -> Results | None:
        domain, operator = step.domain, step.node.op_type
        convert = find_converter(domain, operator, signature.since_version)
        evaluated = self._evaluated(inputs, step, convert is None)
        if evaluated is not None:
            return evaluated
        converted = self._onnx_node(inputs, step, signature.since_version)
        if self._builder.is_padded:
            known = evaluate_sizes(converted, self._builder)
            if known is not None:
                results = known.values or self._computed(inputs, converted, step, convert)
                return results and known.record_sizes(results, converted, self._builder)
        return self._computed(inputs, converted, step, convert)

    def _computed(
        self, inputs: Inputs, converted: OnnxNode, step: ImportStep, convert: Converter | None
    ) -> Results | None:
        """The outputs as nodes of the graph."""
        node, domain, operator = step.node, step.domain, step.node.op_type
        take_apart = control_flow(domain, operator)
        try:
            settle = find_dynamic_operand(domain, operator, inputs)
            if settle is not None:
                settled = settle(converted, self._builder)
                if not isinstance(settled, OnnxNode):
                    return [settled] if isinstance(settled, Value) else settled
                converted, inputs = settled, settled.inputs
                evaluated = self._evaluated(inputs, step, convert is None)
                if evaluated is not None:
                    return evaluated
            if take_apart is not None:
                return take_apart(converted, self._builder, _StepSubgraphs(self, step))
            if convert is not None:
                return self._converted(convert, converted)
        except _MALFORMED as error:
            raise ImportModelError(f"{step.label} is malformed: {error}") from error
        signature = step.signature
        has_body = signature is not None and signature.has_body
        body = schema_function(node, domain, step.opset, inputs) if has_body else None
        if has_twin(domain, operator):
            body = twin_function(node, inputs)
        if body is None:
            raise UnsupportedOperatorError("it is supported for constant inputs only")
        return self._inline(body, inputs, step, None)

    def _convert_unlisted(self, convert: Converter, step: ImportStep) -> Results | None:
        """Convert a node that has no schema: its converter alone says what it takes."""
        scope = step.frame.scope
        if any(scope.is_poisoned(value) for value in step.node.input):
            return None
        inputs = tuple(scope.lookup(value) for value in step.node.input)
        try:
            return self._converted(convert, self._onnx_node(inputs, step, step.opset))
        except _MALFORMED as error:
            raise ImportModelError(f"{step.label} is malformed: {error}") from error

    def _converted(self, convert: Converter, node: OnnxNode) -> Results:
        results = convert(node, self._builder)
        return results if isinstance(results, Sequence) else [results]

    def _evaluated(self, inputs: Inputs, step: ImportStep, only: bool) -> Results | None:
        """The node's results where all operands are small constants; None where they are not.

        Unless this is the `only` way, errors are left to the converter, which can say what is
        wrong if it is not the evaluator.
        """
        operator = step.node.op_type
        if not can_evaluate(step.domain, operator) or not is_small_constant(inputs, operator):
            return None
        try:
            arrays = evaluate_node(step.node, inputs, step.opset, step.label)
            operands = (value.array for value in inputs if isinstance(value, Value))
            if not only and any(map(_has_denormals, (*operands, *arrays))):
                return None  # what becomes of these is known when the graph is folded
            return [self._builder.constant(array) for array in arrays]
        except ImportModelError:
            if only:
                raise
            return None

    def _bind(self, function: RegisteredFunction, step: ImportStep) -> Results | None:
        """Call a function that the process has for an operator that no converter covers."""
        scope = step.frame.scope
        if any(scope.is_poisoned(value) for value in step.node.input):
            return None
        inputs = tuple(scope.lookup(value) for value in step.node.input)
        return bind(self._onnx_node(inputs, step, step.opset), function, self._builder)

    def _onnx_node(self, inputs: Inputs, step: ImportStep, version: int) -> OnnxNode:
        return OnnxNode(
            label=step.label,
            domain=step.domain,
            operator=step.node.op_type,
            version=version,
            opset=step.opset,
            inputs=inputs,
            outputs=tuple(step.node.output),
            attributes=decode_attributes(
                step.node.attribute, step.label, self._external, self._builder.allowance
            ),
            names=tuple(step.node.input),
            declared=tuple(step.frame.hints.get(output) for output in step.node.output),
        )

    def _inline(
        self, body: FunctionBody, inputs: Inputs, step: ImportStep, key: FunctionKey | None
    ) -> Results | None:
        """Convert a function's body, which replaces its call."""
        frame = step.frame
        if key is not None and key in frame.functions:
            raise ImportModelError(f"the function {key[1]} of the model calls itself")
        _check_depth(frame)
        scope = NameScope(self._builder, self._external)
        for position, formal in enumerate(body.inputs):
            scope.define(formal, inputs[position] if position < len(inputs) else None)
        functions = frame.functions if key is None else (*frame.functions, key)
        opsets = {**frame.opsets, **body.opsets}
        scalars = [
            formal
            for formal, value in zip(body.inputs, inputs, strict=False)
            if isinstance(value, Value) and value.rank == 0
        ]
        hints = shape_hints(body.nodes, step.passed_on(body.outputs), scalars)
        inner = Frame(scope, opsets, step.name, functions, frame.depth + 1, hints)
        self.convert_nodes(body.nodes, inner)
        return _results(body.outputs, scope)

    def attempt(self, make: Callable[[], Results | None]) -> Results | None:
        """What `make` gives.

        Raises ImportModelError, everything being as it was before, if it meets any problem.
        """
        restore, problems = checkpoint(self._builder), self.problems
        source, count = self._builder.source, self._count
        self.problems = _Problems()
        try:
            results = make()
            self.problems.raise_if_any()
        except (ImportModelError, *_MALFORMED) as error:
            restore()
            self._count = count
            if isinstance(error, ImportModelError):
                raise
            raise ImportModelError(f"{source!r} is malformed: {error}") from error
        finally:
            self._builder.source, self.problems = source, problems
        return results

    def inline_graph(self, graph: GraphProto, inputs: Results, step: ImportStep) -> Results | None:
        """Convert a subgraph, which sees the values of the graph around it."""
        frame = step.frame
        _check_depth(frame)
        scope = NameScope(self._builder, self._external, frame.scope)
        scope.add_initializers(graph)
        for formal, value in zip(graph.input, inputs, strict=True):
            is_optional = formal.type.WhichOneof("value") == "optional_type"
            if is_optional and isinstance(value, Value | SequenceValue):
                value = OptionalValue(value, schema_kind(value))
            scope.define(formal.name, value)
        hints = graph_hints(graph)
        if step.node.op_type == "If":
            hints = {**hints, **step.passed_on([output.name for output in graph.output])}
        inner = Frame(scope, frame.opsets, step.name, frame.functions, frame.depth + 1, hints)
        self.convert_nodes(in_order(graph.node), inner)
        return _results([output.name for output in graph.output], scope)


@frozen
class _StepSubgraphs:
    """The subgraphs of one node, as `Subgraphs` asks."""

    importer: ModelImporter
    step: ImportStep

    def __call__(self, graph: GraphProto, inputs: Results) -> Results | None:
        return self.importer.inline_graph(graph, inputs, self.step)

    def attempt(self, make: Callable[[], Results | None]) -> Results | None:
        return self.importer.attempt(make)


def _results(names: Sequence[str], scope: NameScope) -> Results | None:
    """Values of a body's outputs (None where it has none), or None if any is unknown."""
    if any(scope.is_poisoned(name) for name in names):
        return None
    return [scope.lookup(name) if scope.knows(name) else None for name in names]


def _check_depth(frame: Frame) -> None:
    if frame.depth >= _MAX_DEPTH:
        raise ImportModelError(f"functions and branches are nested deeper than {_MAX_DEPTH}")


def _has_denormals(array: Array | None) -> bool:
    return array is not None and array.dtype.kind != "O" and flushed(array) is not array


class _Problems:
    """Everything unsupported in a model, and the first other error."""

    def __init__(self) -> None:
        self._unsupported: dict[tuple[str, str], list[str]] = {}
        self._first: ImportModelError | None = None

    def unsupported(self, operator: str, node: str, reason: str = "") -> None:
        """Record that a node (by name) cannot be converted, because of `reason` if not at all."""
        names = self._unsupported.setdefault((operator, reason), [])
        if node not in names:
            names.append(node)

    def error(self, error: ImportModelError) -> None:
        """Record an error of another kind; only the first one is reported."""
        if self._first is None:
            self._first = error

    def raise_if_any(self) -> None:
        """Raise the one error that names every unsupported operator, else the first other one."""
        if self._unsupported:
            raise UnsupportedOperatorError(self._message())
        if self._first is not None:
            raise self._first

    def _message(self) -> str:
        operators = sorted({operator for operator, _ in self._unsupported})
        if len(operators) == 1:
            head = "the model uses an operator that is not supported"
        else:
            head = f"the model uses {len(operators)} operators that are not supported"
        parts = []
        for (operator, reason), nodes in sorted(self._unsupported.items()):
            names = ", ".join(repr(node) for node in nodes)
            plural = "node" if len(nodes) == 1 else "nodes"
            parts.append(f"{operator} ({plural} {names})" + (f": {reason}" if reason else ""))
        return f"{head}: {'; '.join(parts)}"
