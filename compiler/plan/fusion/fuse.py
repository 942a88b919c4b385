"""Fusion by pattern: the graph's nodes in groups, each of which becomes one kernel.

Contractions, reductions, pools and kernels of several stages (softmax, layer_norm, …) are cores:

- A core takes pointwise nodes after it as its epilogue, as long as every result has the core's
  shape and no intermediate is needed elsewhere. Other operands may be anything that broadcasts.
  Cores with the most work choose first, so that a residual addition joins the larger convolution.
- Operands of the epilogue that only it reads are computed in it when pointwise. So what only makes
  elements larger (dequantize) is left to the kernel that reads it.
- A core that reads each element once (reduce_*, pools without overlap) takes pointwise and
  injective nodes before it. softmax and layer_norm read their data several times and take only
  cheap pointwise nodes. Windows take no turn (transpose, change of layout), and what folds whole
  axes takes one where all that is as large is turned. A contraction reads an element many times
  and at its own pace: it takes nothing before it; its padding is part of its own expression.

A narrow float that is widened for one reader is stored narrow: widening is the reader's part.

What remains is fused among itself: pointwise and injective nodes along edges whose values nobody
else needs. Nothing expensive (exp, division, …) is ever computed more often than once per element.
A node that looks its elements up, or sums several, is computed in rows: pointwise nodes join it,
moves of what it gives do not. A turn (transpose, change of layout) takes blocks of one tensor: it
shares no kernel with what pieces rows together or reads them at divided positions. Concats share
one only while its loops can be cut wherever one operand ends and the next begins.
Views and joins are groups of their own.

A group has one output, and its other values are read inside it only; so contracting groups cannot
create a cycle: a path that leaves a group starts at its output, which depends on all its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import loop_regions
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.registry import (
    Pattern,
    Positions,
    multiplications,
    operator,
    passes_over_data,
    positions_of,
    turns,
)
from tunefarm.compiler.plan.sizes import place_fills
from tunefarm.compiler.schedule.sketches.borders import MAX_BORDERS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import is_narrow

MAXIMUM_NODES = 12

_CORES = (Pattern.CONTRACTION, Pattern.REDUCTION, Pattern.OPAQUE)
_FREE = (Pattern.ELEMENTWISE, Pattern.INJECTIVE)


@frozen
class Group:
    """Nodes of one kernel in graph order; `core` is None in groups without one.

    Of a chain it is the last core; `stored` are the values that those before it give.
    """

    nodes: tuple[Node, ...]
    core: Node | None
    stored: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        """The value that the group computes for others."""
        return self.nodes[-1].output

    @property
    def pattern(self) -> Pattern:
        """That of its first node."""
        return _pattern(self.nodes[0])


def fuse(graph: Graph, allowance: ResourceBudget | None = None) -> tuple[Group, ...]:
    """The groups in execution order; every node is in exactly one.

    Raises `LimitError` when the time is over.
    """
    return _Fuser(graph, allowance or ResourceBudget()).run()


class _Fuser:
    def __init__(self, graph: Graph, allowance: ResourceBudget) -> None:
        self.graph = graph
        self.allowance = allowance
        self.readers = consumers(graph)
        self.producers = {node.output: node for node in graph.nodes}
        self.position = {node.output: i for i, node in enumerate(graph.nodes)}
        self.outputs = set(graph.outputs)
        self.loops = loop_regions(graph)
        self.grouped: set[str] = set()

    def run(self) -> tuple[Group, ...]:
        groups: list[tuple[list[Node], Node | None]] = []
        cores = [node for node in self.graph.nodes if _pattern(node) in _CORES]
        self.grouped.update(node.output for node in cores)
        for core in sorted(cores, key=self._priority):
            groups.append((self._with_epilogue(core), core))
        for members, chosen in groups:
            if chosen is not None:
                self._absorb_operands(members, chosen)
                self._absorb_prologue(members, chosen)
        for node in self.graph.nodes:
            if node.output in self.grouped:
                continue
            if _pattern(node) in _FREE:
                members = self._grow(node, self._joins_free)
                self._absorb(members, members, _FREE)
            else:
                members = self._claim([node])
            groups.append((members, None))
        finished = [
            Group(tuple(sorted(members, key=self._order)), core) for members, core in groups
        ]
        # The output of a group is its last node, so this is a topological order.
        return tuple(sorted(finished, key=lambda group: self.position[group.output]))

    def _order(self, node: Node) -> int:
        return self.position[node.output]

    def _priority(self, node: Node) -> tuple[bool, int, int]:
        contraction = _pattern(node) is Pattern.CONTRACTION
        return not contraction, -multiplications(node, self.graph.types), self._order(node)

    def _size(self, node: Node) -> int:
        return self.graph.types[node.output].size

    def _claim(self, members: list[Node]) -> list[Node]:
        self.allowance.check_time(f"fusing node {members[0].source!r}")
        self.grouped.update(node.output for node in members)
        return members

    # --- towards the consumers ------------------------------------------------------------------

    def _with_epilogue(self, core: Node) -> list[Node]:
        definition, shape = operator(core.operator), self.graph.types[core.output].shape
        if definition.alone or definition.reads_result:
            return self._claim([core])
        only_casts = definition.ends_in_cast

        def joins(node: Node, members: Sequence[Node], open_values: Sequence[str]) -> bool:
            if only_casts and not operator(node.operator).identity_if_same_type:
                return False
            same_shape = self.graph.types[node.output].shape == shape
            return _pattern(node) is Pattern.ELEMENTWISE and same_shape

        members = self._grow(core, joins)
        while len(members) > 1 and (
            self._reader_widens(members[-1]) or self._reader_ends(members[-1])
        ):
            left = {node.output for node in members[:-1]}
            if not all(self._closed(node, left) for node in members[:-2]):
                break  # the node joins several values, which would all be results without it
            self.grouped.discard(members.pop().output)
        return members

    def _reader_widens(self, node: Node) -> bool:
        """Does a cheap node make elements larger, which its one reader can do for itself?"""
        types, readers = self.graph.types, self.readers.get(node.output, ())
        if len(readers) != 1 or node.output in self.outputs or not _is_cheap(node):
            return False
        reader = readers[0]
        if _pattern(reader) is not Pattern.ELEMENTWISE and passes_over_data(reader) != 1:
            return False
        stored, wide = (types[name].dtype.bytes for name in (node.inputs[0], node.output))
        return _pattern(node) is Pattern.ELEMENTWISE and stored < wide

    def _reader_ends(self, node: Node) -> bool:
        """Does a node fill padding for one reader that folds whole axes, and may stop before it?"""
        while node.operator == "fill":
            readers = self.readers.get(node.output, ())
            if len(readers) != 1 or node.output in self.outputs:
                return False
            if place_fills.folds(readers[0]):
                return True
            node = readers[0]
        return False

    def _joins_free(self, node: Node, members: Sequence[Node], open_values: Sequence[str]) -> bool:
        if _pattern(node) not in _FREE:
            return False
        # Several paths through different index maps would copy what lies before them.
        if _pattern(node) is Pattern.INJECTIVE:
            value = open_values[0]
            one_reader = len(self.readers[value]) == 1 and node.inputs.count(value) == 1
            if len(open_values) > 1 or not one_reader:
                return False
            if value not in _tables(node) and not self._reads_well(node, members):
                return False
        return not self._has_many_borders([*members, node]) and not self._recomputes(
            [*members, node]
        )

    def _grow(
        self, start: Node, joins: Callable[[Node, Sequence[Node], Sequence[str]], bool]
    ) -> list[Node]:
        """Add the next reader of the group's values as long as it may join; then go back to the
        last point at which the group had a single output."""
        members = [start]
        complete = 1
        while len(members) < MAXIMUM_NODES:
            inside = {node.output for node in members}
            open_values = [node.output for node in members if not self._closed(node, inside)]
            if self.outputs.intersection(open_values):
                break
            readers = [
                reader
                for value in open_values
                for reader in self.readers.get(value, ())
                if reader.output not in inside
            ]
            if not readers:
                break
            reader = min(readers, key=self._order)
            if reader.output in self.grouped or not joins(reader, members, open_values):
                break
            if not self._run_as_often(start, reader):
                break
            members.append(reader)
            inside.add(reader.output)
            closed = all(self._closed(node, inside) for node in members[:-1])
            if closed and not self._is_better_read(reader):
                complete = len(members)
        return self._claim(members[:complete])

    def _is_better_read(self, node: Node) -> bool:
        """Does a node widen narrow floats for one reader that can do so itself?"""
        types, readers = self.graph.types, self.readers.get(node.output, ())
        if node.operator != "cast" or len(readers) != 1 or node.output in self.outputs:
            return False
        source, result = types[node.inputs[0]].dtype, types[node.output].dtype
        if not (is_narrow(source) and result.holds(source)):
            return False
        reader = readers[0]
        if _pattern(reader) in _FREE:
            return positions_of(reader) is not Positions.LOOKED_UP
        return passes_over_data(reader) is not None and reader.inputs[0] == node.output

    def _run_as_often(self, one: Node, other: Node) -> bool:
        """Do both run in each step of the same loops?"""
        return self.loops.get(one.output, ()) == self.loops.get(other.output, ())

    def _closed(self, node: Node, inside: set[str]) -> bool:
        """Is the node's value needed inside the group only (and there at all)?"""
        readers = self.readers.get(node.output, ())
        if not readers or node.output in self.outputs:
            return False
        return all(reader.output in inside for reader in readers)

    # --- towards the producers ------------------------------------------------------------------

    def _absorb_operands(self, members: list[Node], core: Node) -> None:
        """Pointwise operands of the epilogue."""
        epilogue = [node for node in members if node is not core]
        added = self._absorb(epilogue, members, (Pattern.ELEMENTWISE,))
        members.extend(node for node in added if node not in members)

    def _absorb_prologue(self, members: list[Node], core: Node) -> None:
        passes = passes_over_data(core)
        if passes is None:
            return
        patterns = _FREE if passes == 1 else (Pattern.ELEMENTWISE,)
        prologue = [core]
        source = self.producers.get(core.inputs[0])
        if source is None or not self._may_absorb(source, prologue, patterns):
            return
        self._absorb(prologue, members, patterns, source)
        members.extend(node for node in prologue if node not in members)

    def _absorb(
        self,
        part: list[Node],
        members: list[Node],
        patterns: Sequence[Pattern],
        first: Node | None = None,
    ) -> list[Node]:
        """Add to `part` the producers that only it reads, nearest first; returns `part`.

        `members` is the whole group, for the limit of its size. With `first`, only that producer
        and what it reads are candidates.
        """
        count = len({node.output for node in (*part, *members)})
        work = [first] if first else self._producers_of(part)
        while work and count < MAXIMUM_NODES:
            node = work.pop(0)
            if node in part or not self._may_absorb(node, part, patterns):
                continue
            part.insert(0, node)
            self._claim([node])
            count += 1
            work += self._producers_of([node])
        return part

    def _producers_of(self, nodes: Sequence[Node]) -> list[Node]:
        names = [name for node in nodes for name in node.inputs]
        return [self.producers[name] for name in names if name in self.producers]

    def _may_absorb(self, node: Node, part: Sequence[Node], patterns: Sequence[Pattern]) -> bool:
        inside = {member.output for member in part}
        if node.output in self.grouped:
            return False
        if _pattern(node) not in patterns or not self._run_as_often(node, part[0]):
            return False
        if not self._closed(node, inside):
            return False
        if turns(node) and not self._takes_turned(part):
            return False
        several = sum(member.inputs.count(node.output) for member in part) > 1
        if several and any(_pattern(member) is Pattern.INJECTIVE for member in part):
            return False
        readers = [member for member in part if node.output not in _tables(member)]
        if not all(self._reads_well(reader, [node]) for reader in readers):
            return False
        return not self._has_many_borders([node, *part]) and not self._recomputes([node, *part])

    def _takes_turned(self, part: Sequence[Node]) -> bool:
        """Can these nodes read a tensor across its rows, in vectors, if one of them is a core?

        What folds whole axes can, if nothing is as large that lies in another order. Windows move
        along the rows.
        """
        if not any(_pattern(member) in _CORES for member in part):
            return True
        core, types = part[-1], self.graph.types
        between = [member for member in part if member is not core]
        return operator(core.operator).folds_axes and all(
            sum(types[name].size == self._size(member) for name in member.inputs if name) == 1
            for member in between
        )

    # --- cost -----------------------------------------------------------------------------------

    def _reads_well(self, reader: Node, members: Sequence[Node]) -> bool:
        """Is what the members compute read by rows, and no more often than it is worth?

        What is looked up, or the sum of several elements, is computed in rows and then moved. What
        turns rows into columns does so in blocks of one tensor, whose elements lie at plain
        positions. Of what a table picks, only what is picked is computed.
        """
        moves = _pattern(reader) is Pattern.INJECTIVE
        if _pattern(reader) not in _FREE:
            return all(positions_of(member) is Positions.PLAIN for member in members)
        for member in members:
            if moves and positions_of(member) is Positions.LOOKED_UP:
                return False
            if (turns(reader) and _is_uneven(member)) or (turns(member) and _is_uneven(reader)):
                return False
            if positions_of(reader) is Positions.LOOKED_UP and member.output in reader.inputs:
                piecewise = operator(member.operator).piecewise
                if piecewise or self._size(reader) >= self._size(member):
                    return False
        return True

    def _has_many_borders(self, members: Sequence[Node]) -> bool:
        """Do several concats change operands at more places than a kernel's loops are cut at?"""
        pieces = [len(node.inputs) - 1 for node in members if operator(node.operator).piecewise]
        return len(pieces) > 1 and sum(pieces) > MAX_BORDERS

    def _recomputes(self, members: Sequence[Node]) -> bool:
        """Would something that is not cheap be computed more than once per element?

        `members` are in an order in which producers come before their readers.
        """
        times: dict[str, float] = {}
        for position in range(len(members) - 1, -1, -1):
            node = members[position]
            most = 1.0
            for reader in members[position + 1 :]:
                if node.output in reader.inputs:
                    most = max(most, times[reader.output] * self._reads_per_element(reader, node))
            times[node.output] = most
            if most > 1 and not _is_cheap(node) and _pattern(node) in _FREE:
                return True
        return False

    def _reads_per_element(self, reader: Node, node: Node) -> float:
        passes = passes_over_data(reader)
        return max(1.0, self._size(reader) / self._size(node)) if passes is None else passes


def _pattern(node: Node) -> Pattern:
    return operator(node.operator).pattern


def _tables(node: Node) -> tuple[str, ...]:
    """The operands that say where a node's data is read: as plainly as anything is."""
    return node.inputs[1:] if positions_of(node) is Positions.LOOKED_UP else ()


def _is_cheap(node: Node) -> bool:
    return operator(node.operator).cheap and positions_of(node) is not Positions.LOOKED_UP


def _is_uneven(node: Node) -> bool:
    """Are elements of one row read from different places, or not one next to the other?"""
    return operator(node.operator).piecewise or positions_of(node) is not Positions.PLAIN
