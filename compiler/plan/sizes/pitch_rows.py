"""Pass: rows of planes whose width is dynamic lie side by side in memory.

    conv: f32[1, 4, 160, 160, 8], width <= 160  ->  rows of conv are min(160, width + 3) * 8 apart

A value lies at its bounds: an image of 320 columns in a build for up to 960 would use every third
part of each row only, and what streams it would jump from page to page. Planes stay where they are,
so that views and joins of whole planes are what they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tunefarm.compiler.kernels.kernel import (
    Buffer,
    Call,
    FusedKernel,
    KernelCall,
    KernelProgram,
    RowPitch,
    ValidExtent,
    reads_of,
    written_by,
)
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import SIZES

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
    """The program in which values that only kernels read and write have a pitch, where they can.

    Its kernels have limits already. Matrix tiles load rows that are a fixed number of bytes apart:
    on targets that have them rows stay at their bounds where kernels read narrow types.
    """
    if SIZES not in program.types:
        return program
    ends = {}
    for call in _writers(program, target.product_tiles is not None):
        end = _end_of_columns(call)
        if end is not None:
            ends[call.output] = end
    margins: dict[tuple[int, int], int] = {}  # by what rows with the same pitch share
    for end in ends.values():
        if end.stride > 1:
            key = end.extent, end.number
            margins[key] = max(margins.get(key, 0), end.offset)
    pitches = {}
    for name, end in ends.items():
        margin, multiple = max(end.offset, 0), VECTOR
        if end.stride > 1:
            margin, multiple = margins[end.extent, end.number] + BEHIND, 1
        if margin + multiple - 1 < end.extent:
            pitches[name] = (end, margin, multiple)
    calls = tuple(_pitched(program, call, pitches) for call in program.calls)
    return replace(program, calls=calls)


def _writers(program: KernelProgram, tiles: bool) -> Iterator[KernelCall]:
    """Calls of kernels that alone write their results, which kernels alone read as they are.

    With `tiles` none of those kernels may be one for which matrix tiles are of use.
    """
    written = Counter(name for call in program.calls for name in written_by(call))
    kept = {*program.inputs, *program.outputs, *program.constants}
    for call in program.calls:
        if not isinstance(call, KernelCall):
            kept.update((*reads_of(call), *written_by(call)))
            continue
        buffers = zip(call.inputs, call.kernel.inputs, strict=True)
        kept.update(name for name, buffer in buffers if program.types[name].shape != buffer.shape)
        if call.kernel.leaves_rest or (tiles and any(map(_is_tiled, call.kernel.inputs))):
            kept.update((*call.inputs, call.output))
    for call in program.calls:
        if not isinstance(call, KernelCall) or written[call.output] > 1:
            continue
        if call.output not in kept and SIZES in call.inputs:
            yield call


def _is_tiled(buffer: Buffer) -> bool:
    return buffer.dtype in (DType.F16, DType.BF16, DType.I8, DType.U8)


def _end_of_columns(call: KernelCall) -> ValidExtent | None:
    """The limit that ends rows of the result of a call, of planes that end at run time too."""
    shape = call.kernel.output.shape
    sizes = call.kernel.inputs[call.inputs.index(SIZES)].name
    for position in reversed(range(2, len(shape))):
        found = _limits_of(call.kernel, position, sizes)
        if not found:
            continue
        outer = _limits_of(call.kernel, position - 1, sizes)
        if len(shape) < LEAST_AXES or not outer:
            return None
        # The value's own size comes first: fills begin there, and tiles end there.
        return min(found, key=lambda limit: (limit.offset > NEAR, limit.number))
    return None


def _limits_of(kernel: FusedKernel, position: int, sizes: str) -> list[ValidExtent]:
    """The limits that end an axis of the output at one of the sizes."""
    shape = kernel.output.shape
    axis = math.prod(shape[position + 1 :]), shape[position], sizes
    return [x for x in kernel.limits if (x.stride, x.extent, x.sizes) == axis]


def _pitched(
    program: KernelProgram, call: Call, pitches: Mapping[str, tuple[ValidExtent, int, int]]
) -> Call:
    """The call, of a kernel that knows how far apart rows are."""
    if not isinstance(call, KernelCall):
        return call
    kernel, inputs = call.kernel, list(call.inputs)
    if pitches.keys().isdisjoint((*inputs, call.output)):
        return call
    buffers = list(kernel.inputs)
    if SIZES not in inputs:
        type = program.types[SIZES]
        inputs.append(SIZES)
        buffers.append(Buffer(f"in{len(buffers)}", type.dtype, type.shape))
    sizes = buffers[inputs.index(SIZES)].name

    def pitch(name: str) -> RowPitch | None:
        if name not in pitches:
            return None
        end, margin, multiple = pitches[name]
        plane = program.types[name].shape
        rows = next(
            plane[i - 1]
            for i in range(1, len(plane))
            if math.prod(plane[i + 1 :]) == end.stride and plane[i] == end.extent
        )
        return RowPitch(end.stride, end.extent, rows, sizes, end.number, margin, multiple)

    buffers = [
        replace(buffer, pitch=pitch(name)) for name, buffer in zip(inputs, buffers, strict=True)
    ]
    kernel = replace(kernel, inputs=tuple(buffers), pitch=pitch(call.output))
    return replace(call, kernel=kernel, key=workload_key(kernel), inputs=tuple(inputs))
