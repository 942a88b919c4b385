"""Passes: the row pitch of dynamic images, and arguments that are dense at their true sizes.

    conv: f32[1, 4, 160, 160, 8], width <= 160  ->  rows of conv are min(160, width + 3) * 8 apart

`pitch_rows`: a buffer is allocated for the bounds of its sizes. With rows at the distance of the
bound, an image of 320 columns in a build for up to 960 would use a third of each row, and loops
over rows would jump between pages. So rows lie as far apart as a run needs (the leading dimension
of BLAS). Planes stay at the bound, so that views and joins of whole planes keep their offsets; with
a fixed height all rows of a value follow each other. So do rows whose columns are longer than
vectors, such as the features of a token: with a batch of one in a build for up to eight, steps
would lie eight sentences apart and use an eighth of the cache's sets.

    fill = select(i3 < w, select(i2 < h, x[i0, i1, i2, i3], 0), 0)
      ->   x lies dense at run time: image i0 begins at i0 * 3 * h * w, and row i2 at i2 * w

`dense_arguments`: the caller's array is dense at its true sizes. A kernel that reads it at bounds
needs a copy first; kernels that only move and compute elements read it in place. Every load stands
under conditions that its element exists, since nothing lies behind the last one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tunefarm.compiler.expr.nodes import Binary, Expr, Load, Select, all_of, const, integer, select
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import loads, postorder, transform
from tunefarm.compiler.kernels.kept_inputs import inputs_kept
from tunefarm.compiler.kernels.kernel import (
    Buffer,
    Call,
    DensePitch,
    FusedKernel,
    JoinCall,
    KernelCall,
    KernelProgram,
    RowPitch,
    ValidExtent,
    ViewCall,
    reads_of,
    written_by,
)
from tunefarm.compiler.plan.sizes.size_names import with_kernel, with_operands
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import SIZES, Signature, SizedPort

# --- Rows of planes whose width is dynamic -------------------------------------------------------

LEAST_AXES: Final = 4
"""Of a value with planes: images, channels (or blocks of them), rows and columns."""

BEHIND: Final = 4
"""Columns that the last tile of a row may write behind the ones that are needed, as nearly all do.
More of them would be tested for one by one."""

NEAR: Final = 8
"""Columns behind a size that a limit at it may need: one that needs more is about another size."""

VECTOR: Final = 16
"""Where columns are elements of vectors, rows are a multiple of so many of them apart, a register
of AVX-512: what the last vector of a row writes behind it is the row's own, and rows begin where
lines of a cache do."""


def pitch_rows(program: KernelProgram, target: Target) -> KernelProgram:
    """The program in which memory that only kernels read and write has a pitch, where it can.

    Its kernels have limits already. Matrix tiles load rows that are a fixed number of bytes apart:
    on targets that have them rows stay at their bounds where kernels read narrow types.
    """
    if SIZES not in program.types:
        return program
    memories = _memories(program)
    ends = _ends(program, memories, target.product_tiles is not None)
    margins: dict[tuple[int, int], int] = {}  # by what rows with the same pitch share
    for end, _ in ends.values():
        if 1 < end.stride <= VECTOR:
            key = end.extent, end.number
            margins[key] = max(margins.get(key, 0), end.offset)
    pitches = {}
    for memory, (end, rows) in ends.items():
        margin, multiple = max(end.offset, 0), VECTOR if end.stride == 1 else 1
        if 1 < end.stride <= VECTOR:
            margin = margins[end.extent, end.number] + BEHIND
        if margin + multiple - 1 < end.extent:
            pitch = RowPitch(end.stride, end.extent, rows, SIZES, end.number, margin, multiple)
            pitches[memory] = pitch
    found = {name: pitches[memory] for name, memory in memories.items() if memory in pitches}
    return replace(program, calls=tuple(_pitched(program, call, found) for call in program.calls))


def _memories(program: KernelProgram) -> dict[str, str]:
    """For each value the first of those that share its memory: views, and what is joined."""
    first: dict[str, str] = {}
    for call in program.calls:
        if isinstance(call, ViewCall | JoinCall):
            same = {first.get(name, name) for name in (*reads_of(call), call.output)}
            shared = min(same)
            first.update((name, shared) for name, own in list(first.items()) if own in same)
            first.update(dict.fromkeys((*reads_of(call), call.output, *same), shared))
    return {name: first.get(name, name) for name in program.types}


def _ends(
    program: KernelProgram, memories: Mapping[str, str], tiles: bool
) -> dict[str, tuple[ValidExtent, int]]:
    """Where rows end in memory that kernels alone write, each value once, and that kernels alone
    read as it is; and how many rows a plane has.

    With `tiles` none of those kernels may be one for which matrix tiles are of use.
    """
    written = Counter(
        name for call in program.calls if not _is_same(call) for name in written_by(call)
    )
    kept = {*program.inputs, *program.outputs, *program.constants}
    kept.update(name for name, count in written.items() if count > 1)
    for call in program.calls:
        if not isinstance(call, KernelCall):
            kept.update(() if _is_same(call) else (*reads_of(call), *written_by(call)))
            continue
        if call.kernel.pitch is not None:
            kept.add(call.output)
        if call.kernel.leaves_rest or (tiles and any(map(_is_tiled, call.kernel.inputs))):
            kept.update((*call.inputs, call.output))
    refused = {memories[name] for name in kept if name in memories}
    ends: dict[str, tuple[ValidExtent, int]] = {}
    for call in program.calls:
        if isinstance(call, KernelCall) and (memory := memories[call.output]) not in refused:
            end = _end_of_columns(call)
            before = ends.get(memory, end)
            if end is None or before is None or _unlike(end, before):
                refused.add(memory)
            else:
                ends[memory] = max(end, before, key=lambda item: item[0].offset)
    for call in program.calls:
        refused.update(_misfits(program, call, memories, ends))
    return {memory: end for memory, end in ends.items() if memory not in refused}


def _is_same(call: Call) -> bool:
    """Whether what a call gives is the memory of what it takes."""
    return isinstance(call, ViewCall | JoinCall)


def _unlike(one: tuple[ValidExtent, int], other: tuple[ValidExtent, int]) -> bool:
    return replace(one[0], offset=0) != replace(other[0], offset=0) or one[1] != other[1]


def _misfits(
    program: KernelProgram,
    call: Call,
    memories: Mapping[str, str],
    ends: Mapping[str, tuple[ValidExtent, int]],
) -> Iterator[str]:
    """The memory in which a call sees no planes of these rows, or not from a plane's first on."""

    def planes(name: str) -> RowPitch | None:
        if memories[name] not in ends:
            return None
        end, rows = ends[memories[name]]
        return RowPitch(end.stride, end.extent, rows, SIZES, end.number, 0)

    match call:
        case KernelCall(kernel=kernel):
            seen = [(call.output, kernel.output.shape)]
            buffers = zip(call.inputs, kernel.inputs, strict=True)
            seen += [(name, buffer.shape) for name, buffer in buffers]
            for name, shape in seen:
                if (pitch := planes(name)) and not pitch.fits(shape):
                    yield memories[name]
        case ViewCall() | JoinCall():
            begins = [program.types[name].size for name in reads_of(call)]
            if isinstance(call, ViewCall):
                begins = [call.offset // program.types[call.output].dtype.bytes]
            if (pitch := planes(call.output)) and any(begin % pitch.plane for begin in begins):
                yield memories[call.output]


def _is_tiled(buffer: Buffer) -> bool:
    return buffer.dtype in (DType.F16, DType.BF16, DType.I8, DType.U8)


def _end_of_columns(call: KernelCall) -> tuple[ValidExtent, int] | None:
    """The limit that ends rows of the result of a call, and how many rows a plane has: all where
    planes do not end at run time."""
    if SIZES not in call.inputs:
        return None
    shape = call.kernel.output.shape
    sizes = call.kernel.inputs[call.inputs.index(SIZES)].name
    limits = [limit for limit in call.kernel.limits if limit.sizes == sizes]
    least = min((limit.stride for limit in limits), default=0)
    found = [limit for limit in limits if limit.stride == least]
    if not found or len({limit.extent for limit in found}) > 1:
        return None
    row, total = least * found[0].extent, math.prod(shape)
    outer = {limit.extent for limit in limits if limit.stride == row}
    rows, planes = min(outer, default=total // row), total
    if least > VECTOR:
        planes = 1
    elif len(shape) >= LEAST_AXES:
        planes = math.prod(shape[:2])  # images, channels
    if len(outer) > 1 or rows == 1 or (outer and row * rows * planes > total):
        return None
    # The value's own size comes first: fills begin there, and tiles end there.
    end = min(found, key=lambda limit: (limit.offset > NEAR, limit.number))
    return replace(end, sizes=SIZES), rows


def _pitched(program: KernelProgram, call: Call, pitches: Mapping[str, RowPitch]) -> Call:
    """The call, of a kernel that knows how far apart rows are."""
    if not isinstance(call, KernelCall) or pitches.keys().isdisjoint((*call.inputs, call.output)):
        return call
    call, named = with_operands(call, [SIZES], program.types)

    def pitch(name: str) -> RowPitch | None:
        return replace(pitches[name], sizes=named[SIZES]) if name in pitches else None

    operands = zip(call.inputs, call.kernel.inputs, strict=True)
    buffers = tuple(replace(buffer, pitch=pitch(name)) for name, buffer in operands)
    own = call.kernel.pitch or pitch(call.output)
    return with_kernel(call, replace(call.kernel, inputs=buffers, pitch=own))


# --- Arguments ----------------------------------------------------------------------------------

LEAST_BYTES: Final = 4096
"""Of an argument at its bounds: fewer are copied sooner than conditions are tested."""


def dense_arguments(program: KernelProgram, signature: Signature) -> KernelProgram:
    """The program whose kernels read dynamic arguments dense, where all of an argument's can."""
    if SIZES not in program.types:
        return program
    dense = {
        port.name: numbers
        for port in signature.inputs
        if (numbers := _sizes_of(port, signature)) and _reads_elements(port.name, program)
    }
    return replace(program, calls=tuple(_reading(call, dense, program) for call in program.calls))


def dense_inputs(program: KernelProgram) -> frozenset[str]:
    """The inputs of a program that its kernels read as they lie."""
    return frozenset(
        name
        for call in program.calls
        if isinstance(call, KernelCall)
        for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True)
        if isinstance(buffer.pitch, DensePitch)
    )


def _sizes_of(port: SizedPort, signature: Signature) -> tuple[int | None, ...] | None:
    """The numbers of a port's sizes, None for those that are fixed; None if it is copied."""
    grows = any(
        output.type == port.type and output.shape != port.shape for output in signature.outputs
    )  # a result of the last call, which lies in a place
    if grows or any(len(axis) != 1 for axis in port.padded) or port.type.bytes < LEAST_BYTES:
        return None
    numbers: list[int | None] = []
    for ((true, extent),) in port.padded:
        if true != extent and true not in signature.sizes:
            return None
        numbers.append(None if true == extent else signature.sizes.index(true))
    if all(number is None for number in numbers[1:]):
        return None  # it lies as at the beginning of its place
    return tuple(numbers)


def _reads_elements(name: str, program: KernelProgram) -> bool:
    """Whether all that reads a value is kernels that take its elements, each for one of theirs."""
    if name in program.outputs:
        return False
    readers = [call for call in program.calls if name in reads_of(call)]
    return bool(readers) and all(_takes_elements(call, name, program) for call in readers)


def _takes_elements(call: Call, name: str, program: KernelProgram) -> bool:
    if not isinstance(call, KernelCall) or call.inputs.count(name) > 1:
        return False
    position, kernel = call.inputs.index(name), call.kernel
    buffer = kernel.inputs[position]
    extends = position in inputs_kept(kernel) and call.output in _returned(program)
    if extends or buffer.shape != program.types[name].shape:
        return False
    found = [
        (stage, load)
        for stage in kernel.stages
        for load in loads(stage.body)
        if load.buffer == buffer.name
    ]
    sums = any(stage.reduce_axes or stage.combiner for stage, _ in found)
    return not sums and not any(_repeats(load.indices[-1]) for _, load in found)


def _repeats(column: Expr) -> bool:
    """Whether neighbours read one element, as of an image that is made larger: vectors of them are
    taken apart of loads, which conditions of their own for each element would end."""
    return any(isinstance(part, Binary) and part.op == "floordiv" for part in postorder(column))


def _returned(program: KernelProgram) -> set[str]:
    """The outputs, and what they are views of: a cache that is returned may lie over the last."""
    found = {*program.outputs}
    for call in reversed(program.calls):
        if isinstance(call, ViewCall) and call.output in found:
            found.add(call.input)
    return found


def _reading(
    call: Call, dense: Mapping[str, tuple[int | None, ...]], program: KernelProgram
) -> Call:
    """The call, of a kernel that reads arguments of these sizes as they lie."""
    if not isinstance(call, KernelCall) or dense.keys().isdisjoint(call.inputs):
        return call
    call, named = with_operands(call, [SIZES], program.types)
    buffers = tuple(
        replace(buffer, pitch=DensePitch(buffer.shape, named[SIZES], dense[name]))
        if name in dense
        else buffer
        for name, buffer in zip(call.inputs, call.kernel.inputs, strict=True)
    )
    return with_kernel(call, _guarded(replace(call.kernel, inputs=buffers)))


def _guarded(kernel: FusedKernel) -> FusedKernel:
    """The kernel, which reads of dense inputs what is there, and 0 instead of the rest."""
    pitches = {
        buffer.name: buffer.pitch
        for buffer in kernel.inputs
        if isinstance(buffer.pitch, DensePitch)
    }

    def under(body: Expr, known: frozenset[Expr]) -> Expr:
        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Select):
                holds = known.union(conjuncts(node.condition))
                parts = under(node.condition, known), under(node.then, holds)
                return select(*parts, under(node.otherwise, known))
            if isinstance(node, Load) and node.buffer in pitches:
                places = tuple(under(place, known) for place in node.indices)
                load = Load(node.dtype, node.buffer, places)
                conditions = _conditions(load, pitches[load.buffer])
                missing = [condition for condition in conditions if condition not in known]
                return select(all_of(*missing), load, const(0, load.dtype)) if missing else load
            return None

        return transform(body, visit)

    stages = tuple(replace(stage, body=under(stage.body, frozenset())) for stage in kernel.stages)
    return replace(kernel, stages=stages)


def _conditions(load: Load, pitch: DensePitch) -> Iterator[Expr]:
    """That an element is there, axis by axis."""
    for place, number in zip(load.indices, pitch.numbers, strict=True):
        if number is not None:
            size = Load(DType.I64, pitch.sizes, (integer(number),))
            yield Binary(DType.BOOL, "lt", place, size)
