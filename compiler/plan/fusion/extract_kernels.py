"""Turns a graph into a program of fused kernels: one kernel per fusion group, one view per view."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import Loops, is_loop, loop_of, loop_regions
from tunefarm.compiler.kernels.kernel import (
    Call,
    FunctionCall,
    Guard,
    JoinCall,
    KernelBuilder,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.function import reads_sizes, types_of_texts
from tunefarm.compiler.operators.loop import INDEX, RESULT, LoopParts
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.plan.fusion.chain_groups import chain_groups
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.open_axes import OpenAxes
from tunefarm.compiler.types.tensor_type import Array, TensorType

# --- Which kernels of a program need not run, because nobody takes what they compute -------------
#
# What is read by a `choose` alone, on one of its sides, is needed only where its condition has
# that side taken; and so is what is read by that alone. So a branch of the model is whatever
# computes one side, without being marked as such in the graph: passes are free to move nodes, and
# what both sides or others need always runs. What runs once, before a loop, cannot wait for a
# condition that is computed in the loop's steps.


Guards = tuple[Guard, ...]


def find_guards(graph: Graph, groups: Sequence[Group]) -> dict[str, Guards]:
    """The guards of every group that has any, by its output; the outermost condition first."""
    needs: dict[str, Guards] = dict.fromkeys(graph.outputs, ())
    loops = loop_regions(graph)

    def need(value: str, path: Guards) -> None:
        path = _known_before(path, loops.get(value, ()), loops)
        needs[value] = _common(needs[value], path) if value in needs else path

    guarded: dict[str, Guards] = {}
    for group in reversed(groups):
        path = needs.get(group.output, ())
        if path:
            guarded[group.output] = path
        inside = {node.output for node in group.nodes}
        for node in group.nodes:
            sides = operator(node.operator).lazy and node.inputs[0] not in graph.constants
            for position, name in enumerate(node.inputs):
                if not name or name in inside:
                    continue
                if sides and position:
                    need(name, (*path, Guard(node.inputs[0], position == 1)))
                else:
                    need(name, path)
    return guarded


def _known_before(path: Guards, inside: Loops, loops: Mapping[str, Loops]) -> Guards:
    """The first guards of a path, as many as are known to what lies in these loops only."""
    for count, guard in enumerate(path):
        if not set(loops.get(guard.value, ())) <= set(inside):
            return path[:count]
    return path


def common_guards(paths: Sequence[Guards]) -> Guards:
    """What all of these paths, one at least, have in common from the start."""
    return reduce(_common, paths)


def _common(one: Guards, other: Guards) -> Guards:
    """What two paths have in common from the start."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def conditions_first(groups: Sequence[Group], guarded: Mapping[str, Guards]) -> list[Group]:
    """The groups in an order in which conditions are known before what they guard.

    It is the given one where that will do. A condition depends on nothing that it guards, as that
    would be needed whatever the condition is.
    """
    makers = {node.output: group for group in groups for node in group.nodes}
    ordered: dict[str, Group] = {}
    for first in groups:
        work = [first]
        while work:
            group = work[-1]
            conditions = [guard.value for guard in guarded.get(group.output, ())]
            read = [name for node in group.nodes for name in node.inputs]
            waiting = [
                maker
                for name in (*read, *conditions)
                if (maker := makers.get(name)) is not None
                and maker is not group
                and maker.output not in ordered
            ]
            if waiting:
                work += waiting[:1]
                continue
            work.pop()
            ordered.setdefault(group.output, group)
    return list(ordered.values())


# The groups of a graph with loops, in an order in which the steps of each loop stand together.


@dataclass(slots=True)
class LoopNodes:
    """The nodes where one loop begins and ends, what reads them apart."""

    number: int
    states: dict[int, Node] = field(default_factory=dict)  # by their number
    index: Node | None = None
    results: dict[int, Node] = field(default_factory=dict)  # by their number

    @property
    def result(self) -> Node:
        """One of the results, which all have the same operands."""
        return next(iter(self.results.values()))


@frozen
class Bound:
    """Where a loop begins, or ends."""

    loop: LoopNodes
    begins: bool


def loop_order(graph: Graph, groups: Sequence[Group]) -> Iterator[Group | Bound]:
    """The groups, without the loops' own nodes, between the bounds of the loops they lie in.

    They stay in their order but that a loop runs as a whole where its first result stands: all
    that it depends on comes before that.
    """
    regions = loop_regions(graph)
    loops: dict[int, LoopNodes] = {}
    for group in groups:
        if is_loop(group.nodes[0]):
            _add(loops, group.nodes[0])
    units: dict[int | None, list[Group | LoopNodes]] = {None: []}
    placed: set[int] = set()
    for group in groups:
        first = group.nodes[0]
        inside = regions.get(group.output, ())
        region = inside[-1] if inside else None
        if not is_loop(first):
            units.setdefault(region, []).append(group)
        elif first.operator == RESULT and loop_of(first) not in placed:
            placed.add(loop_of(first))
            units.setdefault(region, []).append(loops[loop_of(first)])
    yield from _unrolled(units, None)


def _unrolled(
    units: dict[int | None, list[Group | LoopNodes]], region: int | None
) -> Iterator[Group | Bound]:
    for unit in units.get(region, ()):
        if isinstance(unit, Group):
            yield unit
            continue
        yield Bound(unit, True)
        yield from _unrolled(units, unit.number)
        yield Bound(unit, False)


def _add(loops: dict[int, LoopNodes], node: Node) -> None:
    found = loops.setdefault(loop_of(node), LoopNodes(loop_of(node)))
    if node.operator == INDEX:
        found.index = node
        return
    number = node.attributes["number"]
    assert isinstance(number, int)
    (found.results if node.operator == RESULT else found.states)[number] = node


def extract_kernels(
    graph: Graph,
    allowance: ResourceBudget | None = None,
    chains: Collection[str] = (),
    kernels: GroupKernels | None = None,
) -> KernelProgram:
    """The kernels of `graph` in execution order, each verified.

    Every output of the program is a kernel's result, or a view of one, that shares its memory with
    no input, constant or other output; where the graph says otherwise, a copy kernel is inserted.
    A constant that is an output keeps its name as output and becomes NAME_value as constant; an
    input that is an output too is returned as NAME_output. `chains` are as in `GroupChains.joined`.
    `kernels` are the graph's, where some are made already or operators round each result. Raises
    `LimitError` when the time is over.
    """
    return _Extractor(
        graph, allowance or ResourceBudget(), chains, kernels or GroupKernels(graph)
    ).run()


class _Extractor:
    def __init__(
        self,
        graph: Graph,
        allowance: ResourceBudget,
        chains: Collection[str],
        kernels: GroupKernels,
    ) -> None:
        self.graph = graph
        self.chains = chains
        self.allowance = allowance
        self.types: dict[str, TensorType] = dict(graph.types)
        self.constants: dict[str, Array] = dict(graph.constants)
        self.calls: list[Call] = []
        self.renamed: dict[str, str] = {}  # values that are read under another name
        self.root: dict[str, str] = {}  # view -> the value whose memory it is
        self.owned = _owners(graph)
        self.kernels = kernels
        self.guards: dict[str, tuple[Guard, ...]] = {}  # by the output of a group
        self.called: set[int] = set()  # functions' calls that are done

    def run(self) -> KernelProgram:
        for name in self.graph.outputs:
            if name in self.constants:
                self._rename_constant(name)
        fused = fuse(self.graph, self.allowance)
        groups = list(chain_groups(self.graph, fused, self.chains))
        self.guards = find_guards(self.graph, groups)
        ordered = conditions_first(groups, self.guards) if self.guards else groups
        for group in loop_order(self.graph, ordered):
            if isinstance(group, Bound):
                self._loop(group)
                continue
            self.allowance.check_time(f"the kernel of node {group.nodes[0].source!r}")
            if group.pattern is Pattern.VIEW:
                self._view(group.nodes[0])
            elif group.pattern is Pattern.JOIN:
                self._join(group.nodes[0])
            elif group.pattern is Pattern.FUNCTION:
                self._function(group.nodes[0])
            else:
                self._kernel(group, self.guards.get(group.output, ()))
        outputs = self._outputs()
        read = {*self.graph.inputs, *outputs}
        for call in self.calls:
            read.update((*reads_of(call), *written_by(call)))
        types = {name: type for name, type in self.types.items() if name in read}
        for name, type in types.items():
            self.allowance.check_array(f"the value {name!r}", type.shape, type.dtype.bytes)
        return KernelProgram(
            self.graph.name,
            self.graph.inputs,
            outputs,
            tuple(self.calls),
            types,
            {name: array for name, array in self.constants.items() if name in read},
        )

    # --- groups ---------------------------------------------------------------------------------

    def _kernel(self, group: Group, guards: tuple[Guard, ...]) -> None:
        for made in self.kernels.of(group):
            nodes = made.group.nodes
            call = KernelCall(
                made.kernel,
                made.key,
                tuple(self.renamed.get(name, name) for name in made.inputs),
                made.group.output,
                tuple(dict.fromkeys(node.source for node in nodes if node.source)),
                tuple(node.operator for node in nodes),
                guards,
            )
            self.calls.append(call)

    def _view(self, node: Node) -> None:
        source = self.renamed.get(node.inputs[0], node.inputs[0])
        root = self.root.get(source, source)
        is_output = node.output in self.graph.outputs
        if is_output and self.owned.get(root) != node.output:
            view = self._fresh(f"{node.output}_view", self.types[node.output])
            self.calls.append(ViewCall(source, view, self._offset(node)))
            self._copy(view, node.output, node)
            return
        self.root[node.output] = root
        self.calls.append(ViewCall(source, node.output, self._offset(node)))

    def _offset(self, view: Node) -> int:
        """The byte of its operand where a view starts."""
        offset = complete_attributes(view).get("offset", 0)
        assert isinstance(offset, int)
        return offset * self.types[view.output].dtype.bytes

    def _join(self, node: Node) -> None:
        inputs = tuple(self.renamed.get(name, name) for name in node.inputs)
        self.calls.append(JoinCall(inputs, node.output))

    def _function(self, node: Node) -> None:
        """One call for all the nodes of its results, those that nothing reads included."""
        attributes = complete_attributes(node)
        call = attributes.integer("call")
        if call in self.called:
            return
        self.called.add(call)
        nodes = {
            complete_attributes(other).integer("number"): other.output
            for other in self.graph.nodes
            if other.operator == node.operator and other.attributes["call"] == call
        }
        results = types_of_texts(attributes, "results")
        outputs = [
            nodes.get(number) or self._fresh(f"{node.output}_unread", result.type)
            for number, result in enumerate(results)
            if result is not None
        ]
        called = types_of_texts(attributes, "operands")
        operands = [None if item is None else item.type for item in called]
        inputs = tuple(self.renamed.get(name, name) for name in node.inputs)
        axes: tuple[OpenAxes | None, ...] = ()
        if reads_sizes(attributes):
            operands.append(self.types[node.inputs[-1]])
            axes = tuple(None if i is None else i.axes for i in (*called, *results))
        self.calls.append(
            FunctionCall(
                name=attributes.text("name"),
                version=attributes.text("version"),
                symbol=attributes.text("symbol"),
                context=attributes.text("context"),
                arguments=attributes.text("arguments"),
                inputs=(*inputs, *("" for _ in operands[len(inputs) :])),
                operands=tuple(operands),
                outputs=tuple(outputs),
                results=tuple(result.type for result in results if result is not None),
                source=node.source,
                guards=common_guards([self.guards.get(name, ()) for name in nodes.values()]),
                axes=axes,
            )
        )

    # --- loops ----------------------------------------------------------------------------------

    def _loop(self, bound: Bound) -> None:
        """Where a loop begins or ends; what runs once knows of the guards that all of it has."""
        loop = bound.loop
        parts = LoopParts.of(loop.result)
        count = len(parts.states) + len(parts.collected) + 2
        # Nobody needs a state that is read neither in steps nor behind them.
        kept = [n for n in range(len(parts.states)) if n in loop.states or n in loop.results]
        if bound.begins:
            names = [
                loop.states[number].output
                if number in loop.states
                else self._fresh(f"{loop.result.output}_state", self.types[parts.initial[number]])
                for number in kept
            ]
            self.calls.append(
                LoopBegin(
                    loop=loop.number,
                    limit=self._read(parts.limit),
                    first=self._read(parts.first),
                    initial=tuple(self._read(parts.initial[number]) for number in kept),
                    states=tuple(names),
                    index="" if loop.index is None else loop.index.output,
                    most=complete_attributes(loop.result).integer("most"),
                    source=loop.result.source,
                    guards=self._loop_guards(loop),
                )
            )
            return
        begin = next(
            call
            for call in reversed(self.calls)
            if isinstance(call, LoopBegin) and call.loop == loop.number
        )
        following = tuple(
            self._following(begin, self._read(parts.states[number]), state)
            for number, state in zip(kept, begin.states, strict=True)
        )
        self.calls.append(
            LoopEnd(
                loop.number,
                self._read(parts.again),
                following,
                tuple(map(self._read, parts.collected)),
                tuple(
                    loop.results[number].output if number in loop.results else ""
                    for number in (*kept, *range(len(parts.states), count))
                ),
                complete_attributes(loop.result).integers("backward"),
            )
        )

    def _loop_guards(self, loop: LoopNodes) -> tuple[Guard, ...]:
        return common_guards([self.guards.get(n.output, ()) for n in loop.results.values()])

    def _following(self, begin: LoopBegin, name: str, state: str) -> str:
        """The next state, in memory that no state is copied to before it is read."""
        root = self.root.get(name, name)
        if root not in begin.states or name == state:
            return name
        copy = self._fresh(f"{name}_next", self.types[name])
        self._copy(name, copy, None)
        return copy

    def _read(self, name: str) -> str:
        return self.renamed.get(name, name)

    # --- outputs --------------------------------------------------------------------------------

    def _rename_constant(self, name: str) -> None:
        if name in self.renamed:
            return
        new_name = self._fresh(f"{name}_value", self.types[name])
        self.constants[new_name] = self.constants.pop(name)
        self.renamed[name] = new_name

    def _outputs(self) -> tuple[str, ...]:
        outputs: list[str] = []
        for name in self.graph.outputs:
            if name in outputs or name in self.graph.inputs:
                kind = "output" if name in self.graph.inputs else "copy"
                copy = self._fresh(f"{name}_{kind}", self.types[name])
                self._copy(name, copy, None)
                outputs.append(copy)
                continue
            if name in self.graph.constants:
                self._copy(self.renamed[name], name, None)
            outputs.append(name)
        return tuple(outputs)

    def _copy(self, source: str, output: str, node: Node | None) -> None:
        type = self.types[source]
        if not type.size:
            self.calls.append(ViewCall(source, output))
            return
        builder = KernelBuilder()
        data = builder.input(type, source in self.constants)
        axes = [(f"i{position}", extent) for position, extent in enumerate(type.shape)]
        builder.stage("copy", axes, lambda *indices: data[indices])
        kernel = builder.kernel("copy", "copy")
        sources = (node.source,) if node is not None and node.source else ()
        operators = (node.operator,) if node is not None else ("identity",)
        verify_kernel(kernel)
        key = workload_key(kernel)
        self.calls.append(KernelCall(kernel, key, (source,), output, sources, operators))

    def _fresh(self, hint: str, type: TensorType) -> str:
        name, count = hint, 0
        while name in self.types:
            count += 1
            name = f"{hint}_{count}"
        self.types[name] = type
        return name


def _owners(graph: Graph) -> dict[str, str]:
    """For each kernel result that is an output, or is an output under another shape: that output.

    A result that is an output itself belongs to itself; else the first view of it gets it.
    """
    views = {
        node.output: node.inputs[0]
        for node in graph.nodes
        if operator(node.operator).pattern is Pattern.VIEW
    }
    computed = {node.output for node in graph.nodes if node.output not in views}
    owners = {name: name for name in graph.outputs if name in computed}
    for name, source in views.items():
        root = source
        while root in views:
            root = views[root]
        if name in graph.outputs and root in computed:
            owners.setdefault(root, name)
    return owners
