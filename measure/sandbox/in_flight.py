"""What is in flight: a number that a process leaves where its parent finds it after its death.

A process that runs several programs in turn and is killed by one of them cannot say by which. So it
notes their numbers in memory that is shared with a file its parent holds.
"""

from __future__ import annotations

import mmap
import os
import struct

_NUMBER = struct.Struct("<q")
IN_FLIGHT_BYTES = _NUMBER.size
NOBODY = -1


class InFlight:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` of the file of `IN_FLIGHT_BYTES`; -1 for memory that nobody reads."""
        self._number = memoryview(mmap.mmap(descriptor, IN_FLIGHT_BYTES)).cast("q")

    def note(self, number: int) -> None:
        """From now on this number is in flight."""
        self._number[0] = number


def write_in_flight(descriptor: int, number: int) -> None:
    """Give the file its size and this number: the parent's side, before a request."""
    os.pwrite(descriptor, _NUMBER.pack(number), 0)


def read_in_flight(descriptor: int) -> int | None:
    """The number last noted; None for nobody's."""
    (number,) = _NUMBER.unpack(os.pread(descriptor, IN_FLIGHT_BYTES, 0))
    return None if number == NOBODY else int(number)
