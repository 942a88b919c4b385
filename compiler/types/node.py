"""Node: one use of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Attribute


@frozen
class Node:
    """One operator application with one output; an absent optional input is ""."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""  # name of the ONNX node it came from, for errors and reports
