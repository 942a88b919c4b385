"""A kernel that is being measured: its reference, its guarded buffers, its constants and arenas."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.kernel_sizes import as_logical, needed_elements
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.runtime.spec.executable_spec import aligned
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.numerics import is_narrow, sum_tolerance
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.placement import Placement, buffer_sizes
from tunefarm.measure.sandbox.guarded import GuardedBuffer, GuardedPages, holds
from tunefarm.measure.worker.reference import Reference, Rounding
from tunefarm.measure.worker.timing_arena import TimingArena

# Copies of a kernel's packed constants, as production has them: in one block, by cache lines.


class ConstantCopies:
    """All constants of a kernel one after the other, as often as asked for."""

    def __init__(self, packed: Mapping[str, Array]) -> None:
        """`packed`: the constants by name, in the order of the kernel ABI; C-contiguous."""
        self._blocks: list[GuardedPages] = []
        self.hold(packed)

    def hold(self, packed: Mapping[str, Array]) -> None:
        """Be the copies of other constants from now on, in the same memory as far as it goes."""
        self._packed = packed
        self._offsets: dict[str, int] = {}
        self.bytes = 0  # of one copy
        for name, array in packed.items():
            self._offsets[name] = self.bytes
            self.bytes += aligned(array.nbytes)
        step = max(self.bytes, 1)
        self._begins = [  # address of each copy
            begin
            for block in self._blocks
            for begin in range(block.address, block.address + block.nbytes - step + 1, step)
        ]
        self._filled = 0  # copies

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(block.nbytes for block in self._blocks)

    def addresses(self, count: int) -> list[dict[str, int]]:
        """Where each constant is in each of `count` copies; raises MemoryError."""
        missing = count - len(self._begins)
        if missing > 0:
            block = GuardedPages(missing * self.bytes)
            self._blocks.append(block)
            for number in range(missing):
                self._begins.append(block.address + number * self.bytes)
        for begin in self._begins[self._filled : count]:
            for name, array in self._packed.items():
                ctypes.memmove(begin + self._offsets[name], array.ctypes.data, array.nbytes)
        self._filled = max(self._filled, count)
        return [
            {name: begin + offset for name, offset in self._offsets.items()}
            for begin in self._begins[:count]
        ]

    def changed(self) -> str:
        """The name of a constant that differs in the first copy; empty if none does."""
        for name, array in self._packed.items():
            if not holds(self._begins[0] + self._offsets[name], array):
                return name
        return ""

    def touch(self) -> None:
        """Have all pages there."""
        for block in self._blocks:
            block.touch()

    def mend(self) -> None:
        """Put all copies right again."""
        count, self._filled = self._filled, 0
        self.addresses(count)

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        for block in self._blocks:
            block.close()
        self._blocks, self._begins, self._filled = [], [], 0


# Is an output right? Comparison with the reference, under a tolerance that fits the arithmetic.
#
# A sum of K terms in any order has an error of at most K u sum|terms| (Higham, Accuracy and
# Stability of Numerical Algorithms, 2nd ed., section 4.2), and with roundings of random sign about
# sqrt(K) u sum|terms| (Higham and Mary 2019). Neither is known per element, so the terms' size is
# taken from the output itself:
#
#     tolerance = (sum_tolerance(type, K) + inner) * (|expected| + rms(expected))
#
# with K the kernel's reduction length, see `tunefarm.compiler.types.numerics`, and `inner` the
# roundings to narrow types on the way, see `tunefarm.measure.worker.reference`. A result that is
# itself stored in a narrow type was summed in f32 and rounded once: it may be off by one of its
# own spacings besides. So sums in a narrow type are refused, of whose spacings many pile up.
# Integers and bools must be equal; NaN equals NaN.


Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The worst element of a wrong output, and how many elements are wrong."""

    index: tuple[int, ...]
    got: float | int | bool
    expected: float | int | bool
    wrong: int
    total: int

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return (
            f"output[{where}] is {self.got}, expected {self.expected}"
            f" ({self.wrong} of {self.total} elements are wrong)"
        )


def tolerance(expected: Floats, dtype: DType, rounding: Rounding) -> tuple[float, float]:
    """(relative, absolute) tolerance of a float output of this type before it was stored."""
    relative = sum_tolerance(dtype, rounding.length) + rounding.inner
    finite = expected[np.isfinite(expected)]
    if not finite.size:
        return relative, 0.0
    largest = float(np.max(np.abs(finite)))
    if largest == 0.0:
        return relative, 0.0
    scaled = finite.reshape(-1) / finite.dtype.type(largest)  # squares that cannot overflow
    rms = largest * math.sqrt(float(np.dot(scaled, scaled)) / finite.size)
    return relative, relative * rms


class OutputCheck:
    """What an output is to be, with what depends on that alone computed once."""

    def __init__(
        self, expected: Array, rounding: Rounding, needed: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """`expected` of a kernel that rounds so; of its elements only the `needed` ones count."""
        self._needed = needed
        dtype = DType.from_numpy(expected.dtype)
        self._expected = expected
        self._is_float = dtype.is_float
        if not self._is_float:
            return
        floats = self._floats = _computed(expected)
        relative, absolute = tolerance(floats, dtype, rounding)
        with np.errstate(invalid="ignore", over="ignore"):
            self._limit: Floats = np.abs(floats)
            self._limit *= relative
            self._limit += absolute
            if is_narrow(dtype):
                self._limit += np.abs(np.spacing(expected).astype(self._limit.dtype))
        self._is_finite = bool(np.isfinite(self._limit).all())

    def mismatch(self, got: Array) -> Mismatch | None:
        """The worst element of `got`, or None when all are right. Shapes and types are equal."""
        if self._needed is not None:
            got = np.where(self._needed, got, self._expected)
        if self._is_float:
            return self._compare_floats(_computed(got))
        if got.dtype == np.bool_:
            return _exact(got.view(np.uint8), self._expected.view(np.uint8))
        return _exact(got, self._expected)

    def _compare_floats(self, got: Floats) -> Mismatch | None:
        expected = self._floats
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(got - expected)
            right = error <= self._limit
        if self._is_finite and right.all():
            return None
        return _mismatch_of_floats(got, expected, error, self._limit, right)


def compare_output(got: Array, expected: Array, rounding: Rounding) -> Mismatch | None:
    """The worst element of `got`, or None when all are right. Shapes and types are equal."""
    return OutputCheck(expected, rounding).mismatch(got)


def _computed(values: Array) -> Floats:
    """Floats in a type that NumPy computes with: narrow ones as f32, which holds them."""
    dtype = DType.from_numpy(values.dtype)
    return cast(Floats, values if dtype in WIDE_FLOATS else values.astype(np.float32))


def _mismatch_of_floats(
    got: Floats, expected: Floats, error: Floats, limit: Floats, right: npt.NDArray[np.bool_]
) -> Mismatch | None:
    """The worst element that is neither `right` nor as infinite or as no number as expected."""
    right &= np.isfinite(expected)
    right |= (got == expected) | (np.isnan(got) & np.isnan(expected))
    if right.all():
        return None
    wrong = np.flatnonzero(~right)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = error.reshape(-1)[wrong] / np.maximum(
            limit.reshape(-1)[wrong], np.finfo(limit.dtype).tiny
        )
    excess[np.isnan(excess)] = np.inf
    return _mismatch(got, expected, int(wrong[np.argmax(excess)]), len(wrong))


def _exact(got: Array, expected: Array) -> Mismatch | None:
    if np.array_equal(got, expected):
        return None
    wrong = np.flatnonzero(got != expected)
    return _mismatch(got, expected, int(wrong[0]), len(wrong))


def _mismatch(got: Array, expected: Array, position: int, wrong: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(position, got.shape))
    return Mismatch(index, got[index].item(), expected[index].item(), wrong, got.size)


_MOST_COPIES = 64  # of a kernel's constants, and places of its output
_BEYOND_CACHE = 1.25
"""Of the last cache's size, so that nothing is left in it. Copies just as large as it may stay: a
product with 2 MB of weights was timed at 0.48 of its time in the model with 16 copies in 32 MiB (a
virtual Zen 4), and at 1.0 with 20."""
_MOST_COPIED_BYTES = 64 * 1024 * 1024
_MOST_COPIED_LAYOUTS = 2  # besides those of a request
_OWN_SHARE = 0.25
"""Of the last cache, that a process surely has to itself. On a shared host (a virtual Zen 4 with
32 MiB) the last layer of mobilenet_v2, 5 of 20 MB, read its weights from memory in every run."""
_MOST_ARENAS = 4  # kept from request to request


class Workload:
    """A kernel's reference and the memory it is run in, kept between candidates.

    It is checked in guarded buffers, and timed in arenas. Constants are packed once for each layout
    that candidates ask for.
    """

    def __init__(self, kernel: FusedKernel, reference: Reference) -> None:
        self.kernel = kernel
        self.reference = reference
        self.turn = 0  # timed calls so far, which say what copies and places the next one has
        self._activations = {
            buffer.name: GuardedBuffer(buffer.type.bytes)
            for buffer in kernel.inputs
            if not buffer.constant
        }
        self._constants: dict[tuple[str, ConstantLayout | None], tuple[Array, GuardedBuffer]] = {}
        self._copies: dict[tuple[ConstantLayout | None, ...], ConstantCopies] = {}
        self._checks: dict[tuple[int, bool], OutputCheck] = {}
        self._arenas: dict[Placement, TimingArena] = {}
        self._packed = Placement.packed(buffer_sizes(kernel))
        output = kernel.output
        self.output = GuardedBuffer(output.dtype.bytes * int(np.prod(output.shape, dtype=np.int64)))
        self.output_array = self.output.array(output.dtype, output.shape)

    @property
    def nbytes(self) -> int:
        """Memory held, including the unguarded copies that packed constants are compared with."""
        buffers = [*self._activations.values(), self.output]
        constants = sum(2 * b.nbytes for _, b in self._constants.values())
        copies = sum(copies.nbytes for copies in self._copies.values())
        arenas = sum(arena.nbytes for arena in self._arenas.values())
        checks = self.output.nbytes * len(self._checks)
        return sum(b.nbytes for b in buffers) + constants + copies + arenas + checks

    def fill(self, case: int) -> None:
        """Write the inputs of one case into the buffers."""
        for name, buffer in self._activations.items():
            buffer.fill(self.reference.cases[case].stored[name])

    def arguments(self, layouts: Mapping[str, ConstantLayout]) -> list[tuple[str, GuardedBuffer]]:
        """Every buffer of the kernel ABI in order, named."""
        inputs = [
            (b.name, self._constant(b.name, layouts.get(b.name))[1])
            if b.constant
            else (b.name, self._activations[b.name])
            for b in self.kernel.inputs
        ]
        return [*inputs, ("output", self.output)]

    def copies(self, wanted: Sequence[Mapping[str, ConstantLayout]]) -> list[ConstantCopies]:
        """The constants for timed runs, in the layouts of each schedule.

        Those of earlier schedules are given up, but for the latest few.
        """
        names = [buffer.name for buffer in self.kernel.inputs if buffer.constant]
        keys = [tuple(layouts.get(name) for name in names) for layouts in wanted]
        for key, layouts in zip(keys, wanted, strict=True):
            found = self._copies.pop(key, None)
            if found is None:
                packed = {name: self._constant(name, layouts.get(name))[0] for name in names}
                found = self._recycled(keys) or ConstantCopies({})
                found.hold(packed)
            self._copies[key] = found
        return [self._copies[key] for key in keys]

    def _recycled(
        self, wanted: Sequence[tuple[ConstantLayout | None, ...]]
    ) -> ConstantCopies | None:
        """Copies in the layouts not used for longest, if enough others are kept."""
        old = [key for key in self._copies if key not in wanted]
        return self._copies.pop(old[0]) if len(old) >= _MOST_COPIED_LAYOUTS else None

    def arenas(
        self, placements: Sequence[Placement | None], workspace_bytes: int
    ) -> list[TimingArena]:
        """The arena of each placement (None: buffers one after the other), the same for equal ones.

        All have room for a workspace of so many bytes. Raises MeasureError for a placement that
        does not fit the kernel, and MemoryError.
        """
        wanted = [placement or self._packed for placement in placements]
        for placement in wanted:
            arena = self._arenas.pop(placement, None)
            self._arenas[placement] = arena or TimingArena(self.kernel, self.reference, placement)
        for placement in list(self._arenas)[:-_MOST_ARENAS]:
            if placement not in wanted:
                self._arenas.pop(placement).close()
        for placement in wanted:
            self._arenas[placement].make_room(workspace_bytes)
        return [self._arenas[placement] for placement in wanted]

    def changed_input(self, case: int) -> str:
        """The name of an activation that differs from what was written; empty if none does."""
        for name, guarded in self._activations.items():
            if not guarded.equals(self.reference.cases[case].stored[name]):
                return name
        return ""

    def changed_constant(self, layouts: Mapping[str, ConstantLayout]) -> str:
        """The name of a constant that differs from what was written; empty if none does."""
        for buffer in self.kernel.inputs:
            if buffer.constant:
                pristine, guarded = self._constant(buffer.name, layouts.get(buffer.name))
                if not guarded.equals(pristine):
                    return buffer.name
        return ""

    def mismatch(self, case: int, output: Array, *, rounded: bool = False) -> Mismatch | None:
        """What is wrong with the output of a case, if anything; `rounded`: of rounded data."""
        check = self._checks.get((case, rounded))
        found = self.reference.cases[case]
        if check is None:
            needed = needed_elements(self.kernel, found.inputs)
            expected = found.rounded if rounded else found.expected
            if expected is None:
                raise MeasureError(f"{self.kernel.name} has no reference of rounded data")
            check = OutputCheck(expected, self.reference.rounding, needed)
            self._checks[case, rounded] = check
        return check.mismatch(as_logical(output, self.kernel.pitch, found.inputs))

    def _constant(self, name: str, layout: ConstantLayout | None) -> tuple[Array, GuardedBuffer]:
        found = self._constants.pop((name, layout), None)
        if found is None:
            logical = self.reference.cases[0].inputs[name]
            packed = logical if layout is None else layout.pack(logical)
            guarded = GuardedBuffer(packed.nbytes)
            guarded.fill(packed)
            found = packed, guarded
        self._constants[name, layout] = found
        return found

    def trim(self, most_bytes: int, needed: Sequence[Mapping[str, ConstantLayout]]) -> None:
        """Forget constants, the longest unused first, until so much memory is held.

        Those in the `needed` layouts stay.
        """
        kept = {(name, layouts.get(name)) for layouts in needed for name, _ in self._constants}
        for key in [key for key in self._constants if key not in kept]:
            if self.nbytes <= most_bytes:
                return
            self._constants.pop(key)[1].close()
        if self.nbytes > most_bytes:
            self._drop_copies()

    def _drop_copies(self) -> None:
        for copies in self._copies.values():
            copies.close()
        self._copies.clear()

    def close(self) -> None:
        """Let go of all buffers."""
        for _, guarded in self._constants.values():
            guarded.close()
        self._constants.clear()
        self._drop_copies()
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()
        self.output.close()
        for buffer in self._activations.values():
            buffer.close()


def copies_needed(sizes: Sequence[int], model_bytes: int = 0) -> int:
    """How often constants of so many bytes, one size for each schedule, are copied for timing.

    A model's weights are seldom in the caches when their kernel starts, and how much that costs
    depends on the schedule. So calls alternate with copies that exceed the caches together. A model
    that touches no more than `model_bytes` in a run (0: not known) finds its weights in the last
    cache if that is surely large enough: then the copies are as large as the model. Of schedules
    that are compared each has as many: what the smallest needs, unless that is too much.
    """
    if min(sizes) == 0:
        return 0
    last_cache = host_target().l3_bytes
    limit = min(int(_BEYOND_CACHE * last_cache), _MOST_COPIED_BYTES)
    if 0 < model_bytes <= _OWN_SHARE * min(last_cache, _MOST_COPIED_BYTES):
        limit = model_bytes
    needed = -(-limit // min(sizes))
    affordable = max(-(-limit // max(sizes)), 2 * _MOST_COPIED_BYTES // max(sizes))
    return min(_MOST_COPIES, needed, affordable)


def outputs_needed(buffers: Sequence[int], constant_bytes: int, idle_bytes: int) -> int:
    """In how many places calls write their output in turn, so that between two writes to one as
    much memory is touched as `idle_bytes`; one where that fits the second cache.

    `buffers` are the bytes of the inputs, which stay, then of the output; each call reads
    `constant_bytes` that no call has just read.
    """
    *inputs, output = buffers
    target = host_target()
    if idle_bytes <= target.l2_bytes or output == 0:
        return 1
    between = min(idle_bytes, target.l3_bytes, _MOST_COPIED_BYTES) - sum(inputs)
    return min(_MOST_COPIES, 1 + max(0, between // (output + constant_bytes)))
