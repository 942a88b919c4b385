"""Graph: typed values, nodes and constants; the first of the three representations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.metadata import NO_METADATA, Metadata
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import Signature, fixed_signature
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.structure import NO_STRUCTURE, Structure
from tunefarm.compiler.types.tensor_type import Array, TensorType


@frozen
class Graph:
    """A model: nodes in topological order over named, typed values.

    `types` has an entry for every value that a node reads or writes, every input, output and
    constant. `constants` holds the arrays of constant values (read-only, C-contiguous). A value is
    either an input, a constant, or the output of exactly one node. A graph output may also be an
    input or a constant.

    `dynamic` is its signature if some sizes are dynamic: the graph is padded to the bounds then,
    and reads them from its input `tunefarm.compiler.types.signature.SIZES`. Types say how much of
    each axis is there, as far as the importer knew and passes kept the value.
    `unread` has the axes of values behind whose true sizes nobody reads what results depend on:
    there they may hold anything, or not be computed at all. `zeros` has those of values that the
    importer saw to hold 0 there. `computed_sizes` are outputs of one i64 that hold sizes which the
    graph computes; they are no outputs of its program. `structure` says which inputs and outputs
    are parts of sequences and optionals, `metadata` what the model's file says of it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    dynamic: Signature | None = None
    structure: Structure = NO_STRUCTURE
    unread: Mapping[str, PaddedShape] = field(default_factory=dict)
    zeros: Mapping[str, PaddedShape] = field(default_factory=dict)
    computed_sizes: Mapping[str, Dimension] = field(default_factory=dict)
    metadata: Metadata = NO_METADATA

    @property
    def signature(self) -> Signature:
        """How the graph is called; without symbols where it is static."""
        if self.dynamic is not None:
            return self.dynamic
        inputs, outputs = ([(n, self.types[n]) for n in p] for p in (self.inputs, self.outputs))
        return fixed_signature(inputs, outputs)

    @property
    def is_fixed(self) -> bool:
        """Whether all sizes are known when compiling."""
        return self.dynamic is None
