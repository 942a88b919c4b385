"""A plan of precisions applied to a model: the graph and the precision that it is compiled with.

int8 is written into the graph, in the form that quantised models come in. Narrow floats are a
matter of the precision, which name contractions by source: `choose_precision` casts their operands
when layouts and kernels are known. So every contraction gets a source of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.passes import before_layouts, run_passes
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.precision import quantise
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from tunefarm.compiler.types.precision import Precision, PrecisionPlan

_STORAGE = {Precision.BF16: DType.BF16, Precision.F16: DType.F16}


def prepare(graph: Graph, allowance: ResourceBudget | None = None) -> Graph:
    """The graph after the passes that need no target, each contraction with its own source.

    Identities of precisions and calibrations are of this graph. Raises `VerifyError` and
    `LimitError` as `optimise` does.
    """
    prepared = run_passes(graph, before_layouts(), None, allowance or ResourceBudget())
    return _with_own_sources(prepared)


def apply_precisions(
    prepared: Graph, plan: PrecisionPlan, numerics: Numerics = DEFAULT_NUMERICS
) -> tuple[Graph, Numerics]:
    """A prepared graph in the precisions of the plan, and the precision to compile it with.

    Raises SettingsError for a plan that does not fit the graph.
    """
    graph = quantise.run(prepared, plan)
    verify_graph(graph)
    return graph, numerics.planned(_storages(prepared, plan))


def _storages(prepared: Graph, plan: PrecisionPlan) -> Mapping[str, DType]:
    """The narrow float types of contractions, by source."""
    lowered = ((item.source, plan.of(item.identity)) for item in contractions(prepared))
    return {source: _STORAGE[kind] for source, kind in lowered if kind in _STORAGE}


def _with_own_sources(graph: Graph) -> Graph:
    found = {item.value for item in contractions(graph)}
    taken: set[str] = set()
    nodes = []
    for node in graph.nodes:
        if node.output in found:
            name = node.source or node.output
            count = 1
            while name in taken:
                count += 1
                name = f"{node.source or node.output}#{count}"
            taken.add(name)
            node = replace(node, source=name)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
