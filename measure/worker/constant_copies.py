"""Copies of a kernel's packed constants, as production has them: in one block, by cache lines."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from tunefarm.compiler.runtime.spec.executable_spec import aligned
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.sandbox.guarded import GuardedPages, holds


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
