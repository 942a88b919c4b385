"""One node of a model on its way into the graph: where it stands, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from onnx import NodeProto

from tunefarm.compiler.foreign_functions import nearest_function
from tunefarm.compiler.frontend.constant_evaluation import can_evaluate
from tunefarm.compiler.frontend.contributed import contributed_signature, refusal
from tunefarm.compiler.frontend.control_flow import control_flow
from tunefarm.compiler.frontend.converter import covered_versions, find_converter
from tunefarm.compiler.frontend.function_expansion import has_twin
from tunefarm.compiler.frontend.name_scope import NameScope
from tunefarm.compiler.frontend.shape_hints import Hints
from tunefarm.compiler.frontend.signature import Signature, find_signature
from tunefarm.compiler.strings.operators import ONLY_FIRST, computes_with_strings
from tunefarm.compiler.types.frozen import frozen

FunctionKey: TypeAlias = tuple[str, str, str]  # domain, name, overload


@frozen
class Frame:
    """Where a node stands: its names, its opsets, and the functions that it is inside of.

    `hints` are the shapes that are declared of values here.
    """

    scope: NameScope
    opsets: Mapping[str, int]
    outer: str = ""  # the name of the model's node whose expansion this is
    functions: tuple[FunctionKey, ...] = ()
    depth: int = 0
    hints: Hints = field(default_factory=dict)


@frozen
class ImportStep:
    """One node to convert, with its names and its place."""

    node: NodeProto
    frame: Frame
    name: str
    domain: str

    @property
    def label(self) -> str:
        """The node, as errors name it."""
        return f"{self.node.op_type} node {self.name!r}"

    @property
    def operator(self) -> str:
        """Its operator, with the domain if that is not ONNX's own."""
        return f"{self.domain}.{self.node.op_type}" if self.domain else self.node.op_type

    @property
    def opset(self) -> int:
        """The version of its domain that the model imports; 0: none."""
        return self.frame.opsets.get(self.domain, 0)

    @property
    def signature(self) -> Signature | None:
        """What its operator takes and gives; None for one that nobody knows."""
        if not self.opset:
            return None
        found = find_signature(self.domain, self.node.op_type, self.opset)
        return found or contributed_signature(self.domain, self.node.op_type)

    def is_supported(self, signature: Signature) -> bool:
        """Whether the operator of this signature can be imported at all."""
        domain, operator = self.domain, self.node.op_type
        if signature.has_body or can_evaluate(domain, operator):
            return True
        if control_flow(domain, operator) is not None or has_twin(domain, operator):
            return True
        return find_converter(domain, operator, signature.since_version) is not None

    def refusal(self, signature: Signature | None) -> str:
        """Why it cannot be, if it is not supported."""
        if computes_with_strings(self.domain, self.node.op_type):
            return ONLY_FIRST
        if signature is not None:
            versions = covered_versions(self.domain, self.node.op_type)
            if not versions:
                return ""
            listed = ", ".join(map(str, versions))
            return f"version {signature.since_version} of it (covered: {listed})"
        if not self.opset:
            return f"the model imports no opset of the domain {self.domain!r}"
        if not self.domain:
            return f"there is none in opset {self.opset}"
        reason = refusal(self.domain, self.node.op_type)
        if reason:
            return reason
        name = f"{self.domain}::{self.node.op_type}"
        hint = nearest_function(name)
        return f"tunefarm.register_function({name!r}, …) would bind it{hint and f' ({hint})'}"

    def passed_on(self, outputs: Sequence[str]) -> Hints:
        """What is declared of its outputs, said of those of its body."""
        hints = self.frame.hints
        named = zip(outputs, self.node.output, strict=False)
        return {inner: hints[outer] for inner, outer in named if outer in hints}


def name_of(node: NodeProto) -> str:
    """The node's name; that of an output, or of its operator, where it has none."""
    return node.name or next((output for output in node.output if output), "") or node.op_type
