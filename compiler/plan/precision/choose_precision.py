"""Pass: contractions in f32 take their factors in the narrow float type that the precision name.

    conv(x, w, b)   ->   x' = cast(x), where x is made
                         conv(x', w', b, accumulator=f32)   w' cast when the model is built

Factors are cast, products are summed in f32, and what follows is computed in f32 as before. Which
values are stored in the narrow type:

- Those that a narrow contraction multiplies.
- Those of which moves, pools and pointwise operators make such a value, so that what lies between
  two contractions is read and written in half the bytes. Not what pointwise operators repeat, and
  not what they read that is summed as well: norms consist of these.
- Of these, only what one kernel writes and others read: inside a kernel everything stays in f32.
  So a cast is the end of the kernel that makes a value, or the beginning of one that reads it.

All else stays in f32: sums, norms and softmax with what they read, what lies behind the last
contraction, the model's inputs and outputs. So does a contraction where the precision says so,
where it sums over few channels of plain data, whose neighbours lie far apart, where a factor goes
beyond the narrow type's largest number, and where it would save nothing: it is small, or the
target has no instruction that sums products of that type, and constants are read too seldom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.blocked import PLAIN_TO_BLOCKED
from tunefarm.compiler.operators.registry import (
    Pattern,
    complete_attributes,
    moves,
    multiplications,
    operator,
    passes_over_data,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.large_arrays import release
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import Numerics

NARROW = (DType.BF16, DType.F16)
NEGLIGIBLE = (1 / 1000, 1 / 32)
"""Of all products and of all constants of a model: a contraction with less of both stays in f32."""
READ = 4
"""Products per constant up to which reading the constants takes longer than widening them."""
COPIED = 1024
"""Products per element that pay for storing it in both types."""


def run(
    graph: Graph,
    allowance: ResourceBudget,
    numerics: Numerics,
    summed: Collection[DType] = NARROW,
    tiled: Collection[DType] = (),
) -> Graph:
    """The graph with contractions, and what lies between them, in the storage of `numerics`.

    `summed` are the narrow floats whose products the target has instructions to sum, `tiled` those
    of them that its matrix tiles hold.
    """
    narrow = numerics.narrow
    if narrow is None:
        return graph
    costs = _Costs(graph)
    contractions = {
        node.output: node
        for node in graph.nodes
        if numerics.storage_of(node.source) is narrow
        and _may_narrow(graph, node, narrow, narrow in tiled)
        and (numerics.is_planned(node.source) or costs.are_saved(node, narrow in summed))
    }
    if not contractions:
        return graph
    written = {group.output for group in fuse(graph, allowance)}
    stored = (_wanted(graph, contractions) & written) - set(graph.outputs)
    stored -= _copied(graph, contractions.values())
    return _Emitter(graph, narrow, contractions, written, stored).run()


def widen(graph: Graph, summed: Collection[DType] = NARROW) -> Graph:
    """The graph with convolutions of narrow floats in f32 where no instruction sums their products.

    Each factor is widened once, constants at build time, and the result rounded as before. Products
    of matrices keep theirs: reading these takes as long as widening them.
    """
    narrow = frozenset(NARROW) - frozenset(summed)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        node = rewriter.resolve(node)
        dtype = rewriter.types[node.output].dtype
        constant = all(name in rewriter.constants for name in node.inputs[1:] if name)
        if node.operator != "conv" or dtype not in narrow or not constant:
            rewriter.keep(node)
            continue

        def cast(name: str, to: DType, like: Node = node) -> str:
            return rewriter.emit("cast", (name,), {"to": to.value}, like=like)

        factors = tuple(name and cast(name, DType.F32) for name in node.inputs)
        wide = rewriter.emit("conv", factors, node.attributes, like=node)
        rewriter.forward(node.output, cast(wide, dtype))
    return rewriter.finish()


class _Costs:
    """What the contractions of a graph cost: products, and bytes of constants."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        costs = [self._of(node) for node in graph.nodes]
        self.total = [sum(column) for column in zip(*costs, strict=True)]

    def are_saved(self, node: Node, summed: bool) -> bool:
        """Whether a contraction is worth the error that it adds to a model.

        Where no instruction sums narrow products (`summed`) every factor is widened first, which is
        slower but where reading the constants takes longer.
        """
        work, constants = costs = self._of(node)
        pairs = zip(costs, NEGLIGIBLE, self.total, strict=True)
        if all(cost < share * total for cost, share, total in pairs):
            return False
        return summed or work <= READ * constants / DType.F32.bytes

    def _of(self, node: Node) -> tuple[int, int]:
        work = multiplications(node, self.graph.types)
        constants = (name for name in _factors(node) if name in self.graph.constants)
        return work, sum(self.graph.types[name].bytes for name in constants) if work else 0


def _factors(node: Node) -> tuple[str, ...]:
    """The operands of a contraction that it multiplies."""
    return node.inputs[: operator(node.operator).factors]


def _may_narrow(graph: Graph, node: Node, narrow: DType, tiled: bool) -> bool:
    definition = operator(node.operator)
    if definition.pattern is not Pattern.CONTRACTION or "accumulator" not in definition.attributes:
        return False
    factors = _factors(node)
    if any(graph.types[name].dtype is not DType.F32 for name in factors):
        return False
    if definition.fits_tiles is not None and not (tiled and _fits_tiles(graph, node)):
        return False
    plain = complete_attributes(node).get("layout") == PLAIN_TO_BLOCKED
    if plain and graph.types[node.inputs[1]].shape[1] > 1:
        return False
    return all(_holds(graph, name, narrow) for name in factors)


def _fits_tiles(graph: Graph, node: Node) -> bool:
    """Whether matrix tiles hold a contraction."""
    rule = operator(node.operator).fits_tiles
    types = Types(graph.types[name] if name else None for name in node.inputs)
    return rule is not None and rule(complete_attributes(node), types)


def _holds(graph: Graph, name: str, narrow: DType) -> bool:
    """Whether the numbers of a constant stay finite; of other values that is not known."""
    array = graph.constants.get(name)
    if array is None:
        return True
    finite = np.isfinite(array)
    with np.errstate(over="ignore"):
        holds = bool(np.isfinite(array[finite].astype(narrow.numpy)).all())
    release(array.nbytes)
    return holds


# --- which values are stored in the narrow type -------------------------------------------------


def _wanted(graph: Graph, contractions: Collection[str]) -> set[str]:
    """The values in f32 that narrow contractions multiply, or that become such values."""
    wanted: set[str] = set()
    summed = {
        node.inputs[0]
        for node in graph.nodes
        if node.operator in ("reduce_sum", "reduce_mean") and not _lies_between(graph, node)
    }
    for node in reversed(graph.nodes):
        names: Sequence[str] = ()
        if node.output in contractions:
            names = _factors(node)
        elif node.output in wanted and _lies_between(graph, node):
            kept = summed if operator(node.operator).pattern is Pattern.ELEMENTWISE else ()
            names = [
                name
                for name in node.inputs
                if name and name not in kept and not _is_spread(graph, node, name)
            ]
        wanted.update(name for name in names if name and graph.types[name].dtype is DType.F32)
    return wanted


def _copied(graph: Graph, contractions: Collection[Node]) -> set[str]:
    """Values that are better stored in f32, with a narrow copy as well.

    Those that are read in their own kernel; and those of norms that are read in f32 as well, and
    multiplied so often that a copy costs next to nothing: what is added to them stays exact.
    """
    work: Counter[str] = Counter()
    for node in contractions:
        for name in _factors(node):
            work[name] += multiplications(node, graph.types)
    for node in reversed(graph.nodes):
        if operator(node.operator).pattern is Pattern.VIEW:
            work[node.inputs[0]] += work[node.output]
    pointwise = {
        name
        for node in graph.nodes
        if operator(node.operator).pattern is Pattern.ELEMENTWISE
        for name in node.inputs
    }
    return {
        node.output
        for node in graph.nodes
        if operator(node.operator).reads_result
        or (
            operator(node.operator).pattern is Pattern.OPAQUE
            and node.output in pointwise
            and work[node.output] >= COPIED * graph.types[node.output].size
        )
    }


def _lies_between(graph: Graph, node: Node) -> bool:
    """Whether it makes values to be multiplied of others that may be stored as they are."""
    definition = operator(node.operator)
    if definition.pattern is Pattern.REDUCTION:
        return definition.outside is not None or _is_global_pool(graph, node)
    return definition.pattern is Pattern.ELEMENTWISE or moves(node)


def _is_spread(graph: Graph, node: Node, name: str) -> bool:
    """Whether a pointwise operator repeats an operand, as means and deviations of a norm are.

    It is small, and what it is made of may cancel: mean(x^2) - mean(x)^2.
    """
    is_pointwise = operator(node.operator).pattern is Pattern.ELEMENTWISE
    return is_pointwise and graph.types[name].size < graph.types[node.output].size


def _is_global_pool(graph: Graph, node: Node) -> bool:
    """A mean over rows and columns."""
    if node.operator != "reduce_mean" or len(graph.types[node.inputs[0]].shape) not in (4, 5):
        return False
    return set(complete_attributes(node).integers("axes")) == {2, 3}


# --- the graph with casts -----------------------------------------------------------------------


class _Emitter:
    """Rewrites contractions, and casts values where their other form is asked for.

    `written` are the values that one kernel writes and others read, `stored` those of them that are
    stored in the type `narrow`. Every reader of these casts for itself, so that the cast becomes
    part of its kernel.
    """

    def __init__(
        self,
        graph: Graph,
        narrow: DType,
        contractions: Collection[str],
        written: Collection[str],
        stored: Collection[str],
    ) -> None:
        self.graph = graph
        self.dtype = narrow
        self.contractions = contractions
        self.written = written
        self.stored = stored
        self.rewriter = Rewriter(graph)
        self.narrow: dict[str, str] = {}  # values that others read in the narrow type: its names
        self.looped: dict[str, str] = {}  # what loops read in f32 of values stored narrow
        self.copies: dict[str, str] = {}  # narrow copies of values that are read in f32 as well

    def run(self) -> Graph:
        """The rewritten graph."""
        for node in self.graph.nodes:
            if node.output in self.contractions:
                self._contract(node)
            elif self._moves_narrow(node):
                self._move(node)
            else:
                self._keep(node, [self._in_f32(name, node) for name in node.inputs])
        return self.rewriter.finish()

    def _contract(self, node: Node) -> None:
        factors = [self._in_narrow(name, node) for name in _factors(node)]
        others = [
            self._in_f32(name, node) for name in node.inputs[operator(node.operator).factors :]
        ]
        attributes = MappingProxyType({**node.attributes, "accumulator": DType.F32.value})
        self._keep(replace(node, attributes=attributes), [*factors, *others])

    def _keep(self, node: Node, inputs: Sequence[str]) -> None:
        """The node with these operands and its result in f32; cast where others read that."""
        self.rewriter.keep(replace(node, inputs=tuple(inputs)))
        if node.output in self.stored:
            self.narrow[node.output] = self._cast(node.output, self.dtype, node)

    def _moves_narrow(self, node: Node) -> bool:
        """Whether it does with narrow operands what it does with those in f32."""
        overlaps = operator(node.operator).outside is not None and passes_over_data(node) != 1
        if node.output in self.contractions or not (moves(node) or overlaps):
            return False
        floats = [name for name in node.inputs if name and self._is_f32(name)]
        constants = [name for name in floats if name in self.graph.constants]
        if len(constants) + sum(name in self.narrow for name in floats) < len(floats):
            return False
        if not all(_holds(self.graph, name, self.dtype) for name in constants):
            return False
        return len(constants) < len(floats) or (bool(floats) and node.output in self.stored)

    def _move(self, node: Node) -> None:
        """The node on narrow operands; its kernel ends in f32 where nothing narrow is stored."""
        inputs = [
            self._in_narrow(name, node) if name and self._is_f32(name) else name
            for name in node.inputs
        ]
        name = self.rewriter.fresh(f"{node.output}_{self.dtype}")
        self.rewriter.keep(replace(node, inputs=tuple(inputs), output=name))
        is_view = operator(node.operator).pattern is Pattern.VIEW
        ends = node.output in self.written and not (is_view or node.output in self.stored)
        if ends or node.output in self.graph.outputs:
            self._cast(name, DType.F32, node, node.output)
        else:
            self.narrow[node.output] = name

    def _in_narrow(self, name: str, reader: Node) -> str:
        """The value in the narrow type."""
        found = self.narrow.get(name) or self.copies.get(name)
        if found is None:
            array = self.graph.constants.get(name)
            if array is None:
                found = self._cast(name, self.dtype, reader)
            else:
                cast = array.astype(self.dtype.numpy)
                found = self.rewriter.constant(cast, f"{name}_{self.dtype}")
            self.copies[name] = found
        return found

    def _in_f32(self, name: str, reader: Node) -> str:
        """The value in f32 if it is one, for this reader alone; itself if it is of another type.

        The results of a loop read one cast: they are of the same values.
        """
        narrow = self.narrow.get(name)
        if narrow is None or operator(reader.operator).pattern is not Pattern.LOOP:
            return name if narrow is None else self._cast(narrow, DType.F32, reader)
        if name not in self.looped:
            self.looped[name] = self._cast(narrow, DType.F32, reader)
        return self.looped[name]

    def _cast(self, name: str, to: DType, like: Node, output: str = "") -> str:
        output = output or self.rewriter.fresh(f"{name}_{to}")
        return self.rewriter.emit("cast", (name,), {"to": to.value}, like=like, output=output)

    def _is_f32(self, name: str) -> bool:
        return self.graph.types[name].dtype is DType.F32
