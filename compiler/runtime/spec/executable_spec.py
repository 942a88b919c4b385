"""What an executable is made of, as plain data: what the pipeline makes and an artifact stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeAlias

from tunefarm.compiler.runtime.spec.guards import SizeGuard
from tunefarm.compiler.runtime.spec.kernel_report import KernelReport
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.metadata import NO_METADATA, Metadata
from tunefarm.compiler.types.numerics import KEEP, Denormals
from tunefarm.compiler.types.open_axes import OpenAxes, lies_dense
from tunefarm.compiler.types.packing import Packing
from tunefarm.compiler.types.signature import Signature
from tunefarm.compiler.types.structure import NO_STRUCTURE, Structure
from tunefarm.compiler.types.tensor_type import Array, TensorType

# Bytes; constants, workspaces and intermediate values start at a multiple of it. Generated code
# asks only for whole elements: inputs and outputs of the model, and parts of values, may start at
# any multiple of theirs.
ALIGNMENT = 64
ENTRY_SYMBOL = "tunefarm_run"
SIZED_ENTRY_SYMBOL = "tunefarm_run_sized"  # these two are for dynamic shapes
SIZES_SYMBOL = "tunefarm_sizes"
SEAL_SYMBOL = "tunefarm_seal"
REPORT_BYTES = 1024
"""Of what a run says of a function that failed: its step + 1, its code, and the text behind.

During a call there is its step + 1 instead of the code.
"""


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Place(StrEnum):
    """Where a buffer lives while the model runs."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    ARENA = "arena"


@frozen
class Location:
    """A buffer: `offset` bytes into an input, output or constant, or `number` into the arena."""

    place: Place
    number: int
    offset: int = 0

    def __str__(self) -> str:
        number = f"+{self.number}" if self.place is Place.ARENA else f"[{self.number}]"
        return f"{self.place}{number}" + (f"+{self.offset}" if self.offset else "")

    def moved(self, bytes: int) -> Location:
        """The buffer so many bytes behind the start of this one."""
        if self.place is Place.ARENA:
            return Location(self.place, self.number + bytes)
        return Location(self.place, self.number, self.offset + bytes)


@frozen
class Condition:
    """A bool in memory is true, or it is false if that is not to be `taken`."""

    place: Location
    taken: bool

    def __str__(self) -> str:
        return str(self.place) if self.taken else f"not {self.place}"


@frozen
class CallStep:
    """Run the kernel `symbol` on `buffers` (its inputs, then its output).

    `workspace` is the arena offset of the kernel's scratch memory, None when it needs none. It is
    left out unless all `guards` hold, which are asked one after the other.
    """

    symbol: str
    buffers: tuple[Location, ...]
    workspace: int | None
    guards: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        *inputs, output = map(str, self.buffers)
        scratch = "" if self.workspace is None else f" workspace arena+{self.workspace}"
        where = f" where {' and '.join(map(str, self.guards))}" if self.guards else ""
        return f"{output} = {self.symbol}({', '.join(inputs)}){scratch}{where}"


@frozen
class CopyStep:
    """Copy `bytes` bytes: a model output that no kernel writes."""

    source: Location
    destination: Location
    bytes: int

    def __str__(self) -> str:
        return f"{self.destination} = copy({self.source}, {self.bytes} bytes)"


@frozen
class FunctionStep:
    """Call the function that is number `function` of the executable's.

    `buffers` are its inputs (None where absent), then its outputs, of which there are `outputs`;
    `types` are theirs. `arguments` are the node's attributes as a JSON object, `node` is its name.
    The `guards` are as those of a `CallStep`.

    Where sizes are open `axes` has for each buffer what is there of it (None: all, or absent), in
    terms of the i64 vector at `sizes`, and dense copies of what has padding inside lie in the arena
    from `workspace` on, see `tunefarm.compiler.runtime.spec.executable_spec`. Else there are no
    `axes`.
    """

    function: int
    buffers: tuple[Location | None, ...]
    types: tuple[TensorType | None, ...]
    outputs: int
    arguments: str
    node: str
    guards: tuple[Condition, ...] = ()
    axes: tuple[OpenAxes | None, ...] = ()
    sizes: Location | None = None
    workspace: int | None = None

    def __str__(self) -> str:
        texts = ["-" if buffer is None else str(buffer) for buffer in self.buffers]
        count = len(texts) - self.outputs
        scratch = "" if self.workspace is None else f" workspace arena+{self.workspace}"
        sizes = "" if self.sizes is None else f" sizes {self.sizes}"
        given, made = ", ".join(texts[:count]), ", ".join(texts[count:])
        return f"{made} = function {self.function}({given}){sizes}{scratch}"


def extents_bytes(steps: Iterable[RunStep]) -> int:
    """Room for the extents, of 8 bytes, of all tensors of any call of a function with
    dynamic shapes."""
    ranks = (
        sum(len(type.shape) for type in step.types if type is not None)
        for step in steps
        if isinstance(step, FunctionStep) and step.axes
    )
    return aligned(8 * max(ranks, default=0))


def report_bytes(steps: Sequence[RunStep]) -> int:
    """What the arena has at its end where functions are called; nothing where none is."""
    called = any(isinstance(step, FunctionStep) for step in steps)
    return REPORT_BYTES + extents_bytes(steps) if called else 0


@frozen
class LoopStep:
    """Run the steps up to the `AgainStep` of the same `loop` again and again.

    `initial` are copied first. There are as many rounds as the i64 `limit` says, none unless the
    bool `first` is true, and no more than `most`; what is None says nothing. The number of the
    round is stored at `index`. The `guards` are as those of a `CallStep`.
    """

    loop: int
    limit: Location | None
    first: Location | None
    most: int
    index: Location | None
    initial: tuple[CopyStep, ...]
    guards: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        ends = str(self.most) if self.limit is None else f"{self.limit}, at most {self.most}"
        asked = "" if self.first is None else f" if {self.first}"
        index = "" if self.index is None else f" with {self.index}"
        where = f" where {' and '.join(map(str, self.guards))}" if self.guards else ""
        copies = "; ".join(map(str, self.initial))
        return f"loop {self.loop}{index} to {ends}{asked}{where}: {copies}"


@frozen
class RowStep:
    """Copy `bytes` bytes to the row of the round at `destination`, counted from the last row on if
    `backward`."""

    source: Location
    destination: Location
    bytes: int
    backward: bool = False

    def __str__(self) -> str:
        last = " from the last on" if self.backward else ""
        return f"row of {self.destination}{last} = copy({self.source}, {self.bytes} bytes)"


@frozen
class AgainStep:
    """The end of a round of `loop`: `rows` are kept, then `following` copied, then the next begins.

    There is none unless the bool `again` is true, if it is there. In the end `count` gets the
    number of rounds, and `going` whether there would be more of them but for the loop's `most`.
    """

    loop: int
    again: Location | None
    rows: tuple[RowStep, ...]
    following: tuple[CopyStep, ...]
    count: Location | None
    going: Location | None

    def __str__(self) -> str:
        asked = "" if self.again is None else f" if {self.again}"
        copies = "; ".join(map(str, (*self.rows, *self.following)))
        return f"loop {self.loop} again{asked}: {copies}"


RunStep: TypeAlias = CallStep | CopyStep | FunctionStep | LoopStep | AgainStep


@frozen
class FunctionLink:
    """A function that is looked up by name when the executable is loaded, and its version.

    `symbol` is that of a C function and `context` what it is handed, in hex digits: a C library
    takes it by them. Both are "" of a function in Python.
    """

    name: str
    version: str
    symbol: str = ""
    context: str = ""


@frozen
class ObjectPart:
    """The object code that defines one function."""

    symbol: str
    code: bytes


@frozen
class ExecutableSpec:
    """A compiled model before it is loaded into memory.

    `threads` is the thread count it was scheduled for. `constants` are in the form the kernels
    expect. `objects` are the kernels' code, in the order of `kernels`. `entry` is the code of the
    function `ENTRY_SYMBOL`, which carries out `steps`; it holds the seal, see
    `runtime.artefact.seal`. `digests` are the SHA-256 of the objects' code, then of the constants,
    in hex digits. `fallback` marks the variant for CPUs that cannot run another. `numerics` names
    those that it was compiled with, and `denormals` says whether its entry flushes them to zero;
    those of files from before that was said do not. `arena_lower_bound` is what liveness says any
    plan needs, for reports. `structure` says what callers give and get as lists and optionals,
    `guards` for which sizes it is, where an artifact has programs for several. `metadata` is what
    the model's file says of the model.

    `signature` is how callers see it, without symbols where all sizes are fixed. Where some are
    dynamic `inputs`, `outputs` and `steps` are those of the padded program, and the entry's code
    has the functions of `tunefarm.compiler.runtime.entry.entry` as well.

    `operands` are the types of each kernel's operands, then that of its result, in the order of
    `kernels`; nothing in files from before they were kept.

    `in_place` are the outputs that may lie in the memory of an input, each with that input, see
    `tunefarm.compiler.runtime.planning.memory_plan`.

    `packings` are those of the constants, for whoever writes an artifact; what is read from one has
    none.

    `machine` is the digest of the table that default schedules were chosen by; "" in files from
    before there were tables.

    `functions` are not part of it: their pointers and contexts follow those of the constants,
    interleaved, and the last `REPORT_BYTES` of the arena are for a report of what failed; before it
    is room for the extents that functions with dynamic shapes are called with, `extents_bytes`.
    """

    name: str
    target: Target
    threads: int
    inputs: tuple[tuple[str, TensorType], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    arena_bytes: int
    arena_lower_bound: int
    steps: tuple[RunStep, ...]
    constants: tuple[Array, ...]
    kernels: tuple[KernelReport, ...]
    objects: tuple[ObjectPart, ...]
    digests: tuple[str, ...]
    entry: bytes
    signature: Signature
    fallback: bool = False
    numerics: str = "default"
    denormals: Denormals = KEEP
    structure: Structure = NO_STRUCTURE
    guards: tuple[SizeGuard, ...] = ()
    functions: tuple[FunctionLink, ...] = ()
    operands: tuple[tuple[TensorType, ...], ...] = ()
    metadata: Metadata = NO_METADATA
    in_place: tuple[tuple[str, str], ...] = ()
    packings: tuple[Packing, ...] = ()
    machine: str = ""

    @property
    def needed_target(self) -> Target:
        """The target with what the code needs of it: matrix tiles only multiply narrow numbers."""
        if any(kernel.is_narrow for kernel in self.kernels):
            return self.target
        return self.target.without_matrix_tiles()

    def of_tensors(self) -> ExecutableSpec:
        """The same, called with tensors alone: no lists and optionals, and numbers for strings."""
        return replace(self, structure=NO_STRUCTURE)


def made_for(program: ExecutableSpec) -> tuple[Target, bool]:
    """What programs have in common of which one runs for its sizes: the target, and whether they
    are the fallback for CPUs that run no other."""
    return program.target, program.fallback


def needed_targets(programs: Sequence[ExecutableSpec]) -> dict[tuple[Target, bool], Target]:
    """What the programs for each machine need of it together: one may have matrix tiles."""
    needed: dict[tuple[Target, bool], Target] = {}
    for program in programs:
        found = needed.setdefault(made_for(program), program.needed_target)
        if len(program.needed_target.features) > len(found.features):
            needed[made_for(program)] = program.needed_target
    return needed


# Dense copies of tensors for custom operators: these know nothing of padding inside of a tensor.


def dense_places(
    types: Sequence[TensorType | None], axes: Sequence[OpenAxes | None]
) -> tuple[tuple[int | None, ...], int]:
    """Where in the workspace the copy of each tensor is, None of those without; bytes of all."""
    places: list[int | None] = []
    end = 0
    for type, own in zip(types, axes, strict=True):
        copied = type is not None and own is not None and not lies_dense(own)
        places.append(end if copied else None)
        end += aligned(type.bytes) if type is not None and copied else 0
    return tuple(places), end
