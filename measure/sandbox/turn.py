"""Whose turn it is: a number that a process leaves where its parent finds it after its death.

A process that runs several programs in turn and is killed by one of them cannot say by which. So it
notes their numbers in memory that is shared with a file its parent holds.
"""

from __future__ import annotations

import mmap
import os
import struct

_NUMBER = struct.Struct("<q")
TURN_BYTES = _NUMBER.size
NOBODY = -1


class Turn:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` of the file, which has `TURN_BYTES`; -1 for memory that nobody reads."""
        self._number = memoryview(mmap.mmap(descriptor, TURN_BYTES)).cast("q")

    def note(self, number: int) -> None:
        """From now on it is the turn of this number."""
        self._number[0] = number


def write_turn(descriptor: int, number: int) -> None:
    """Give the file its size and this number: the parent's side, before a request."""
    os.pwrite(descriptor, _NUMBER.pack(number), 0)


def read_turn(descriptor: int) -> int | None:
    """The number last noted; None for nobody's turn."""
    (number,) = _NUMBER.unpack(os.pread(descriptor, TURN_BYTES, 0))
    return None if number == NOBODY else int(number)
