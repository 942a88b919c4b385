"""A kernel that is being measured: its reference, and guarded buffers for its inputs and output."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.kernels.kernel import FusedKernel
from compiler.loops.constant_layout import ConstantLayout
from compiler.runtime.buffers import address_of, aligned_empty
from compiler.target import host_target
from compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from compiler.types.tensor_type import Array
from measure.sandbox.guarded import GuardedBuffer
from measure.worker.reference import Reference

_MOST_COPIES = 16  # of a kernel's constants
_MOST_COPIED_BYTES = 64 * 1024 * 1024


class Workload:
    """A kernel's reference, and guarded buffers for its inputs and output, kept between candidates.

    Constants are packed once for each layout that candidates ask for.
    """

    def __init__(
        self, kernel: FusedKernel, reference: Reference, numerics: Numerics = DEFAULT_NUMERICS
    ) -> None:
        self.kernel = kernel
        self.reference = reference
        self.numerics = numerics
        self._activations = {
            buffer.name: GuardedBuffer(buffer.type.bytes)
            for buffer in kernel.inputs
            if not buffer.constant
        }
        self._constants: dict[tuple[str, ConstantLayout | None], tuple[Array, GuardedBuffer]] = {}
        self._copies: dict[tuple[str, ConstantLayout | None], list[Array]] = {}
        output = kernel.output
        self.output = GuardedBuffer(output.dtype.bytes * int(np.prod(output.shape, dtype=np.int64)))
        self.output_array = self.output.array(output.dtype, output.shape)

    @property
    def nbytes(self) -> int:
        """Memory held, including the unguarded copies that packed constants are compared with."""
        buffers = [*self._activations.values(), self.output]
        constants = sum(2 * b.nbytes for _, b in self._constants.values())
        copies = sum(copy.nbytes for copies in self._copies.values() for copy in copies)
        return sum(b.nbytes for b in buffers) + constants + copies

    def fill(self, case: int) -> None:
        """Write the inputs of one case into the buffers."""
        for name, buffer in self._activations.items():
            buffer.fill(self.reference.cases[case].inputs[name])

    def arguments(self, layouts: Mapping[str, ConstantLayout]) -> list[tuple[str, GuardedBuffer]]:
        """Every buffer of the kernel ABI in order, named."""
        inputs = [
            (b.name, self._constant(b.name, layouts.get(b.name))[1])
            if b.constant
            else (b.name, self._activations[b.name])
            for b in self.kernel.inputs
        ]
        return [*inputs, ("output", self.output)]

    def copied_constants(self, layouts: Mapping[str, ConstantLayout]) -> list[dict[str, int]]:
        """Addresses of further copies of all constants, by name: together they exceed the caches.

        A model's weights are seldom in the caches when their kernel starts, and how much that
        costs depends on the schedule. Empty for a kernel without constants.
        """
        names = [buffer.name for buffer in self.kernel.inputs if buffer.constant]
        packed = {name: self._constant(name, layouts.get(name))[0] for name in names}
        size = sum(array.nbytes for array in packed.values())
        if size == 0:
            return []
        limit = min(host_target().l3_bytes, _MOST_COPIED_BYTES)
        count = min(_MOST_COPIES, -(-limit // size))
        for name, array in packed.items():
            copies = self._copies.setdefault((name, layouts.get(name)), [])
            while len(copies) < count:
                copy = aligned_empty(array.shape, array.dtype)
                copy[...] = array
                copies.append(copy)
        return [
            {name: address_of(self._copies[name, layouts.get(name)][i]) for name in names}
            for i in range(count)
        ]

    def changed_input(self, case: int, layouts: Mapping[str, ConstantLayout]) -> str:
        """The name of an input that differs from what was written into it; empty if none does."""
        for buffer in self.kernel.inputs:
            if buffer.constant:
                pristine, guarded = self._constant(buffer.name, layouts.get(buffer.name))
            else:
                pristine = self.reference.cases[case].inputs[buffer.name]
                guarded = self._activations[buffer.name]
            if not guarded.equals(pristine):
                return buffer.name
        return ""

    def _constant(self, name: str, layout: ConstantLayout | None) -> tuple[Array, GuardedBuffer]:
        found = self._constants.get((name, layout))
        if found is None:
            logical = self.reference.cases[0].inputs[name]
            packed = logical if layout is None else layout.pack(logical)
            guarded = GuardedBuffer(packed.nbytes)
            guarded.fill(packed)
            found = self._constants[name, layout] = (packed, guarded)
        return found

    def drop_constants(self) -> None:
        """Forget all packed constants."""
        for _, guarded in self._constants.values():
            guarded.close()
        self._constants.clear()
        self._copies.clear()

    def close(self) -> None:
        self.drop_constants()
        self.output.close()
        for buffer in self._activations.values():
            buffer.close()
