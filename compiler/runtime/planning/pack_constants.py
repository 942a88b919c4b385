"""Pack constants: weights in the layout that the kernels' schedules ask for, at build time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.kernels.float_arithmetic import only_multiplies
from tunefarm.compiler.kernels.kernel import (
    FunctionCall,
    KernelCall,
    KernelProgram,
    LoopBegin,
    LoopEnd,
)
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.runtime.machine.in_threads import in_threads
from tunefarm.compiler.runtime.planning.memory_plan import storage_of
from tunefarm.compiler.runtime.spec.buffers import aligned_pieces
from tunefarm.compiler.types import large_arrays
from tunefarm.compiler.types.denormals import flush_in_place
from tunefarm.compiler.types.numerics import FLUSH, KEEP, Denormals
from tunefarm.compiler.types.packing import NewArray, Packing
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import transformed_shape

if TYPE_CHECKING:
    from tunefarm.compiler.llvm import CompiledKernel

# (constant, logical shape, layout, flushed); one that is read as it is has no shape and no layout
_Use = tuple[str, tuple[int, ...] | None, ConstantLayout | None, bool]


@dataclass(frozen=True, slots=True)
class PackedConstants:
    """Constants as the kernels read them, 64-byte aligned; each (constant, layout) once.

    `reads` maps (call number, input position) to an array's number, `outputs` maps a model output
    that is a constant to one. `packings` say how the numbers of each array lie.
    """

    arrays: tuple[Array, ...]
    packings: tuple[Packing, ...]
    reads: Mapping[tuple[int, int], int]
    outputs: Mapping[str, int]

    def __str__(self) -> str:
        return "\n".join(
            f"constant[{number}]: {array.dtype}{list(array.shape)}"
            for number, array in enumerate(self.arrays)
        )


def pack_constants(
    program: KernelProgram,
    compiled: Mapping[str, CompiledKernel],
    allowance: ResourceBudget | None = None,
    denormals: Denormals = KEEP,
    *,
    to_write: bool = False,
) -> PackedConstants:
    """Pack every constant that a kernel reads; `compiled` is by workload key.

    Large ones lie in a file that is mapped if they are made `to_write` and not to run.
    Weights that are packed for products alone have no denormal numbers left if `denormals` says so.
    Raises `LoweringError` when a kernel wants a packed input that is not a constant, `LimitError`
    when all together would take more memory than allowed.
    """
    storage = storage_of(program)
    numbers: dict[_Use, int] = {}

    def number(use: _Use) -> int:
        return numbers.setdefault(use, len(numbers))

    reads: dict[tuple[int, int], int] = {}
    for step, call in enumerate(program.calls):
        if isinstance(call, FunctionCall | LoopBegin | LoopEnd):
            for position, value in enumerate(call.inputs):
                if value and storage[value].root in program.constants:
                    reads[step, position] = number((storage[value].root, None, None, False))
        if not isinstance(call, KernelCall):
            continue
        layouts = dict(compiled[call.key].constant_layouts)
        for position, (value, buffer) in enumerate(
            zip(call.inputs, call.kernel.inputs, strict=True)
        ):
            layout = layouts.get(buffer.name)
            if storage[value].root in program.constants:
                shape = None if layout is None else buffer.shape
                flush = layout is not None and denormals == FLUSH
                flush = flush and only_multiplies(call.kernel, buffer.name)
                reads[step, position] = number((storage[value].root, shape, layout, flush))
            elif layout is not None:
                raise LoweringError(
                    f"kernel {call.kernel.name} wants its input {value} packed, "
                    "but it is known only at run time"
                )
    outputs = {
        name: number((storage[name].root, None, None, False))
        for name in program.outputs
        if storage[name].root in program.constants and program.types[name].bytes
    }
    total = sum(_packed_bytes(program.constants[use[0]], use[1], use[2]) for use in numbers)
    (allowance or ResourceBudget()).check_bytes("the packed constants of the model", total)
    arrays = _all_packed(program.constants, list(numbers), large_arrays.empty if to_write else None)
    packings = tuple(_packing(program.constants[use[0]], *use[1:3]) for use in numbers)
    return PackedConstants(tuple(arrays), packings, reads, outputs)


def _packing(array: Array, shape: tuple[int, ...] | None, layout: ConstantLayout | None) -> Packing:
    """How the numbers of what `_packed` makes lie."""
    if shape is None or layout is None:
        return Packing(array.shape, (), tuple(range(array.ndim)))
    if layout.winograd:
        shape = transformed_shape(shape, layout.winograd)
    return layout.packing(shape)


def _packed_bytes(
    array: Array, shape: tuple[int, ...] | None, layout: ConstantLayout | None
) -> int:
    """Bytes of what `_packed` makes."""
    if shape is None or layout is None:
        return array.nbytes
    packed = _packing(array, shape, layout).packed_shape
    return math.prod(packed) * layout.dtype(array.dtype).itemsize


def _all_packed(
    constants: Mapping[str, Array],
    uses: Sequence[_Use],
    empty: Callable[[int], npt.NDArray[np.uint8]] | None,
) -> list[Array]:
    """Aligned copies in one piece of memory, which `empty` makes."""
    pieces = aligned_pieces([_packed_bytes(constants[use[0]], *use[1:3]) for use in uses], empty)

    def packed(item: tuple[_Use, NewArray]) -> Array:
        use, piece = item
        result = _packed(constants[use[0]], *use[1:], piece)
        large_arrays.release(result.nbytes)
        return result

    return in_threads(packed, zip(uses, pieces, strict=True))


def _packed(
    array: Array,
    shape: tuple[int, ...] | None,
    layout: ConstantLayout | None,
    flush: bool,
    empty: NewArray,
) -> Array:
    """A copy of a constant in its layout, in an array that `empty` makes."""
    if shape is not None and layout is not None:
        packed = layout.pack(array.reshape(shape), empty)
        if flush:
            flush_in_place(packed)
    else:
        packed = empty(array.shape, array.dtype)
        np.copyto(packed, array)
    packed.flags.writeable = False
    return packed
