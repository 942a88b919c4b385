"""Memory plan: which bytes of one arena every intermediate value and kernel workspace uses.

A value lives from the step that writes it to the last step that reads it, in a loop to its end; two
buffers that are never live at the same step may share bytes. Placing buffers optimally is bin
packing (NP-hard); greedy best fit in a few orders reaches the liveness lower bound on the networks
we know.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import (
    Call,
    FunctionCall,
    JoinCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, Location, Place, aligned
from tunefarm.compiler.types.frozen import frozen


@frozen
class BufferLife:
    """A buffer of `bytes` bytes that is live from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int

    def overlaps(self, other: BufferLife) -> bool:
        """Whether there is a step at which both are live."""
        return self.first <= other.last and other.first <= self.last


@frozen
class Stored:
    """In the memory of the value `root`, `offset` bytes behind its start."""

    root: str
    offset: int = 0


@frozen
class MemoryPlan:
    """Where every value of a program lives.

    `storage` has for each value where it lies in which value's memory (in its own unless it is a
    view, or a part of what was joined). `locations` has the place of every value with memory of its
    own that is not a constant. `workspaces` has one arena
    offset (or None) per call of the program. `copies` lists (value, output number) for model
    outputs that no kernel can write in place: inputs, constants, and second names of one storage.
    """

    arena_bytes: int
    lower_bound: int
    buffers: tuple[BufferLife, ...]
    offsets: tuple[int, ...]
    storage: Mapping[str, Stored]
    locations: Mapping[str, Location]
    workspaces: tuple[int | None, ...]
    copies: tuple[tuple[str, int], ...]

    def location(self, value: str) -> Location:
        """Where a value that is no constant lives."""
        stored = self.storage[value]
        return self.locations[stored.root].moved(stored.offset)

    def __str__(self) -> str:
        lines = [
            f"arena {self.arena_bytes} bytes, lower bound {self.lower_bound}, "
            f"{len(self.buffers)} buffers"
        ]
        for buffer, offset in sorted(
            zip(self.buffers, self.offsets, strict=True), key=lambda pair: (pair[0].first, pair[1])
        ):
            lines.append(
                f"  {offset:>12} +{buffer.bytes:<12} steps {buffer.first}-{buffer.last}"
                f"  {buffer.name}"
            )
        lines.extend(f"  copy {value} -> output {number}" for value, number in self.copies)
        return "\n".join(lines)


def plan_memory(
    program: KernelProgram, workspace_bytes: Sequence[int], allowance: ResourceBudget | None = None
) -> MemoryPlan:
    """Place the intermediate values and workspaces of a program in one arena.

    `workspace_bytes` has one size per call of the program (0 for views). Model inputs, outputs and
    constants stay outside the arena: an output is written by its kernel directly into the caller's
    buffer. Raises `LimitError` for a run that needs more memory than allowed, and `VerifyError` if
    the plan breaks its own rules (a bug here).
    """
    allowance = allowance or ResourceBudget()
    storage = storage_of(program)
    made_by: dict[str, int] = {}  # the first step that writes to the memory
    loops = _Loops.of(program)
    for step, call in enumerate(program.calls):
        if isinstance(call, KernelCall | FunctionCall | LoopBegin | LoopEnd):
            # Rows of what a loop gives are written in all of its steps.
            first = loops.begin(call.loop) if isinstance(call, LoopEnd) else step
            for name in written_by(call):
                made_by.setdefault(storage[name].root, first)
    locations, copies = _ports(program, storage, made_by)
    last_used = _last_uses(program, storage)
    last_used.update((storage[name].root, len(program.calls)) for name, _ in copies)
    loops.keep_alive(made_by, last_used)
    inner = [root for root in made_by if root not in locations]
    buffers = [
        BufferLife(root, program.types[root].bytes, made_by[root], last_used[root])
        for root in inner
    ]
    scratch = [step for step, size in enumerate(workspace_bytes) if size]
    buffers += [
        BufferLife(f"workspace of step {step}", workspace_bytes[step], step, step)
        for step in scratch
    ]
    ports = sum(program.types[name].bytes for name in (*program.inputs, *program.outputs))
    _check_run(buffers, ports, allowance)
    offsets = place_buffers(buffers, allowance)
    verify_placement(buffers, offsets, allowance)
    allowance.check_arena(_extent(buffers, offsets))

    for root, offset in zip(inner, offsets, strict=False):
        locations[root] = Location(Place.ARENA, offset)
    scratch_offsets = dict(zip(scratch, offsets[len(inner) :], strict=True))
    return MemoryPlan(
        arena_bytes=_extent(buffers, offsets),
        lower_bound=lower_bound(buffers),
        buffers=tuple(buffers),
        offsets=tuple(offsets),
        storage=storage,
        locations=locations,
        workspaces=tuple(scratch_offsets.get(step) for step in range(len(program.calls))),
        copies=tuple(copies),
    )


def _ports(
    program: KernelProgram, storage: Mapping[str, Stored], made: Container[str]
) -> tuple[dict[str, Location], list[tuple[str, int]]]:
    """Where inputs and outputs are, and the outputs that are copied from where they are made."""
    locations = {name: Location(Place.INPUT, i) for i, name in enumerate(program.inputs)}
    copies = []
    for number, name in enumerate(program.outputs):
        root = storage[name].root
        is_whole = program.types[name].bytes == program.types[root].bytes
        if root in made and root not in locations and is_whole:
            locations[root] = Location(Place.OUTPUT, number)
        else:
            copies.append((name, number))
    return locations, copies


def _check_run(buffers: Sequence[BufferLife], ports: int, allowance: ResourceBudget) -> None:
    """Refuse runs that need too much for what is live at one step, inputs and outputs (`ports`)."""
    largest = max(buffers, key=lambda buffer: buffer.bytes, default=None)
    named = "" if largest is None else f" (the largest value in between is {largest.name!r})"
    allowance.check_bytes(f"a run of the model{named}", lower_bound(buffers) + ports)


def storage_of(program: KernelProgram) -> dict[str, Stored]:
    """Where each value lies in which value's memory.

    That is its own, unless it is a view, or joined with others. Of joins the last has its way: what
    it joins lies in its memory, and joins before it of the same values are parts of that.
    Raises `VerifyError` for values that cannot lie one behind the other.
    """
    storage = {name: Stored(name) for name in (*program.inputs, *program.constants)}
    finals = {call.loop: call.final for call in program.calls if isinstance(call, LoopEnd)}
    for call in program.calls:
        for name in written_by(call):
            storage.setdefault(name, Stored(name))
        if isinstance(call, LoopBegin):  # states lie where the last ones are wanted
            for state, final in zip(call.states, finals[call.loop], strict=True):
                storage.update({state: Stored(final), final: Stored(final)} if final else {})
        if isinstance(call, ViewCall):
            source = storage[call.input]
            storage[call.output] = Stored(source.root, source.offset + call.offset)
    owned = {
        name
        for call in program.calls
        if not isinstance(call, ViewCall)
        for name in written_by(call)
    }
    inside: dict[str, Stored] = {}  # values that lie in another's memory, by their own
    for call in reversed(program.calls):
        if isinstance(call, JoinCall):
            _join(program, call, storage, owned, inside)
    return {name: _followed(stored, inside) for name, stored in storage.items()}


def _join(
    program: KernelProgram,
    call: JoinCall,
    storage: Mapping[str, Stored],
    owned: set[str],
    inside: dict[str, Stored],
) -> None:
    """Have the inputs lie one behind the other, in the result's memory if they do not yet."""
    spots = [_followed(storage[name], inside) for name in call.inputs]
    sizes = [program.types[name].bytes for name in call.inputs]
    offsets = list(accumulate(sizes, initial=0))
    first = spots[0]
    behind = [Stored(first.root, first.offset + offset) for offset in offsets[:-1]]
    lie_in_order = spots == behind and first.root != storage[call.inputs[0]].root
    if lie_in_order and call.output not in inside:
        inside[call.output] = first
        return
    for name, size, offset in zip(call.inputs, sizes, offsets, strict=False):
        root = storage[name].root
        is_whole = storage[name].offset == 0 and program.types[root].bytes == size
        if root in inside or root not in owned or not is_whole:
            raise VerifyError(f"memory plan: {name} cannot be a part of {call.output}")
        inside[root] = Stored(call.output, offset)


def _followed(stored: Stored, inside: Mapping[str, Stored]) -> Stored:
    """Where it is, once what it lies in lies in others."""
    while stored.root in inside:
        outer = inside[stored.root]
        stored = Stored(outer.root, outer.offset + stored.offset)
    return stored


def _last_uses(program: KernelProgram, storage: Mapping[str, Stored]) -> dict[str, int]:
    """The last step at which each memory is read or written."""
    last: dict[str, int] = {}
    begun: dict[int, tuple[str, ...]] = {}
    for step, call in enumerate(program.calls):
        if isinstance(call, KernelCall | FunctionCall | LoopBegin | LoopEnd):
            guards = () if isinstance(call, LoopEnd) else call.guards
            read = (*reads_of(call), *(guard.value for guard in guards))
            last.update((storage[name].root, step) for name in (*read, *written_by(call)))
        if isinstance(call, LoopBegin):
            begun[call.loop] = call.states
        if isinstance(call, LoopEnd):  # which writes them for the next step
            last.update((storage[name].root, step) for name in begun[call.loop])
    return last


def lower_bound(buffers: Sequence[BufferLife]) -> int:
    """Bytes that any plan needs: the most that is live at one step, each buffer aligned."""
    change: dict[int, int] = {}
    for buffer in buffers:
        change[buffer.first] = change.get(buffer.first, 0) + aligned(buffer.bytes)
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - aligned(buffer.bytes)
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most


_ORDERS: tuple[Callable[[BufferLife], tuple[int, ...]], ...] = (
    lambda buffer: (-buffer.bytes, buffer.first),
    lambda buffer: (-buffer.bytes * (buffer.last - buffer.first + 1), buffer.first),
    lambda buffer: (buffer.first, -buffer.bytes),
    lambda buffer: (buffer.first - buffer.last, -buffer.bytes),
)


def place_buffers(
    buffers: Sequence[BufferLife], allowance: ResourceBudget | None = None
) -> list[int]:
    """An offset per buffer, so that buffers live at the same step do not overlap.

    Greedy best fit, tried in several orders (largest first, largest bytes x lifetime first, in
    order of execution, longest-lived first) until one reaches the lower bound; else the smallest.
    """
    allowance = allowance or ResourceBudget()
    bound = lower_bound(buffers)
    best: list[int] | None = None
    best_bytes = 0
    for order in _ORDERS:
        ranks = sorted(range(len(buffers)), key=_by(buffers, order))
        offsets = _place_in_order(buffers, ranks, allowance)
        extent = _extent(buffers, offsets)
        if best is None or extent < best_bytes:
            best, best_bytes = offsets, extent
        if best_bytes == bound:
            break
    assert best is not None
    return best


def _by(
    buffers: Sequence[BufferLife], order: Callable[[BufferLife], tuple[int, ...]]
) -> Callable[[int], tuple[int, ...]]:
    return lambda i: (*order(buffers[i]), i)


def _place_in_order(
    buffers: Sequence[BufferLife], order: Sequence[int], allowance: ResourceBudget
) -> list[int]:
    """Give each buffer, in `order`, the smallest gap that holds it between those placed."""
    offsets = [0] * len(buffers)
    placed = np.empty((4, len(buffers)), np.int64)  # first and last step, begin and end
    for count, i in enumerate(order):
        allowance.check_time(f"placing {buffers[i].name!r} in memory")
        size, first, last = aligned(buffers[i].bytes), buffers[i].first, buffers[i].last
        firsts, lasts = placed[0, :count], placed[1, :count]
        begins, ends = placed[2:, :count][:, (firsts <= last) & (lasts >= first)]
        ascending = np.argsort(begins, kind="stable")
        reached = np.maximum.accumulate(np.append(0, ends[ascending]))
        gaps = begins[ascending] - reached[:-1]
        fitting = np.flatnonzero(gaps >= size)
        best = fitting[np.argmin(gaps[fitting])] if len(fitting) else -1
        offsets[i] = int(reached[best])
        placed[:, count] = first, last, offsets[i], offsets[i] + size
    return offsets


def _extent(buffers: Sequence[BufferLife], offsets: Sequence[int]) -> int:
    """Bytes of the arena that holds all buffers at these offsets."""
    ends = (offset + aligned(buffer.bytes) for buffer, offset in zip(buffers, offsets, strict=True))
    return max(ends, default=0)


def verify_placement(
    buffers: Sequence[BufferLife], offsets: Sequence[int], allowance: ResourceBudget | None = None
) -> None:
    """Raise `VerifyError` unless offsets are aligned and live buffers never share a byte.

    Walks the steps and compares neighbours by offset among the buffers live at that step.
    """
    allowance = allowance or ResourceBudget()
    starting: dict[int, list[int]] = {}
    for i, buffer in enumerate(buffers):
        if offsets[i] < 0 or offsets[i] % ALIGNMENT:
            raise VerifyError(f"memory plan: {buffer.name} is at offset {offsets[i]}")
        starting.setdefault(buffer.first, []).append(i)
    live: list[int] = []
    for step in sorted(starting):
        allowance.check_time(f"checking the memory of step {step}")
        live = [i for i in live if buffers[i].last >= step] + starting[step]
        live.sort(key=lambda i: (offsets[i], buffers[i].bytes))
        for below, above in pairwise(live):
            if offsets[below] + buffers[below].bytes > offsets[above]:
                raise VerifyError(
                    f"memory plan: {buffers[below].name} at {offsets[below]} "
                    f"(+{buffers[below].bytes}) overlaps {buffers[above].name} at "
                    f"{offsets[above]} at step {step}"
                )


@frozen
class _Loops:
    """The first and the last call of each loop, by its number; inner loops before outer ones."""

    spans: Mapping[int, tuple[int, int]]

    @staticmethod
    def of(program: KernelProgram) -> _Loops:
        """Those of a program."""
        begins: dict[int, int] = {}
        spans: dict[int, tuple[int, int]] = {}
        for step, call in enumerate(program.calls):
            if isinstance(call, LoopBegin):
                begins[call.loop] = step
            elif isinstance(call, LoopEnd):
                spans[call.loop] = begins[call.loop], step
        return _Loops(spans)

    def begin(self, loop: int) -> int:
        """The call at which a loop begins."""
        return self.spans[loop][0]

    def keep_alive(self, made_by: Mapping[str, int], last_used: MutableMapping[str, int]) -> None:
        """Have what was made before a loop and is read in its steps live until its end.

        So do states, which are made where it begins: each step finds them as the last left them.
        """
        for begin, end in self.spans.values():
            for name, first in made_by.items():
                if first <= begin < last_used[name] < end:
                    last_used[name] = end


def outputs_in_place(program: KernelProgram, memory: MemoryPlan) -> tuple[tuple[str, str], ...]:
    """The outputs that may lie in an input's memory, each with that input.

    One kernel reads the input and writes the output; others read the output afterwards at most.
    """
    readers = _by_memory(program, memory, reads_of)
    writers = _by_memory(program, memory, written_by)
    returned = {memory.storage[name].root for name in program.outputs}
    taken = dict.fromkeys(returned & set(program.inputs))
    found: list[tuple[str, str]] = []
    for number, name in enumerate(program.outputs):
        calls = writers.get(memory.storage[name].root, [])
        writer = calls[0] if len(calls) == 1 else None
        if not isinstance(writer, KernelCall) or (
            memory.location(writer.output) != Location(Place.OUTPUT, number)
            or program.types[writer.output].bytes != program.types[name].bytes
        ):
            continue
        for position in inputs_kept(writer.kernel):
            operand = writer.inputs[position]
            if operand in program.inputs and operand not in taken and readers[operand] == [writer]:
                taken[operand] = None
                found.append((name, operand))
                break
    return tuple(found)


def _by_memory(
    program: KernelProgram, memory: MemoryPlan, names_of: Callable[[Call], tuple[str, ...]]
) -> dict[str, list[Call]]:
    """The calls that read or write each memory, by the name of its value."""
    found: dict[str, list[Call]] = {}
    for call in program.calls:
        if isinstance(call, ViewCall):
            continue
        for root in dict.fromkeys(memory.storage[name].root for name in names_of(call)):
            found.setdefault(root, []).append(call)
    return found
