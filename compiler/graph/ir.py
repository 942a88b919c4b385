"""Graph: typed values, nodes and constants; the first of the three representations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.dtypes import DType

Attribute: TypeAlias = (
    int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None
)
Array: TypeAlias = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and static shape of a value; a scalar has the shape ()."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Bytes of the contiguous tensor."""
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application with one output; an absent optional input is ""."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""  # name of the ONNX node it came from, for errors and reports


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: nodes in topological order over named, typed values.

    `types` has an entry for every value that a node reads or writes, every input, output and
    constant. `constants` holds the arrays of constant values (read-only, C-contiguous). A value is
    either an input, a constant, or the output of exactly one node. A graph output may also be an
    input or a constant.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
