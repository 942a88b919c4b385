"""Pass: compute equal things once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.graph.serialize import attributes_to_json
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.large_arrays import release
from tunefarm.compiler.types.tensor_type import Array, bytes_of

_SAMPLED = 256  # elements of a constant, at least, or all of fewer


def run(graph: Graph) -> Graph:
    """The graph with equal constants merged, and equal operators on equal inputs merged.

    Constants are equal when type and bytes are (so 0.0 and -0.0 differ); attributes are compared
    with their defaults filled in.
    """
    rewriter = Rewriter(graph)
    constants: dict[Hashable, str] = {}
    samples = {name: _sample(array) for name, array in graph.constants.items()}
    alike = Counter(samples.values())
    for name, array in graph.constants.items():
        sample = samples[name]
        contents = _digest(array) if alike[sample] > 1 else b""  # weights are seldom alike
        first = constants.setdefault((sample, contents), name)
        if first != name:
            rewriter.forward(name, first)
    seen: dict[Hashable, str] = {}
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        attributes = repr(attributes_to_json(complete_attributes(node)))
        key = (resolved.operator, resolved.inputs, attributes)
        if key in seen:
            rewriter.forward(node.output, seen[key])
        else:
            seen[key] = rewriter.keep(node)
    return rewriter.finish()


def _sample(array: Array) -> Hashable:
    """The type of a constant and some of its elements: what is equal has the same ones."""
    step = max(1, array.size // _SAMPLED)
    elements = array.reshape(-1)[::step].tobytes()
    release(array.nbytes)  # a mapped file is read by pages around each of them
    return str(array.dtype), array.shape, elements


def _digest(array: Array) -> bytes:
    digest = hashlib.sha256(bytes_of(array)).digest()
    release(array.nbytes)
    return digest
