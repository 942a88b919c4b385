"""What a model may ask for while it is read and built, and the object that passes count with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.errors import LimitError
from tunefarm.compiler.machine.control_groups import memory_bytes

MAXIMUM_RANK = 64
"""Of an array in NumPy, in which constants are folded and models run."""
_DEFAULT_SHARE = 0.5  # of the machine's memory


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a model may need.

    `bytes` bounds each input, the constants together, and what a run allocates: values that kernels
    never have in memory, as the scores of attention, may be larger. `nodes` are counted after
    functions and loops are unrolled, `rank` is that of each value, and `seconds` are those from the
    beginning of an import or a build to its end. `loop_steps` are the most of a loop whose end is
    computed at run time, where the model declares no shape that says it, and `loop_rows` those of
    one that collects something in each, and the elements of a range that data ends. `arena` bounds
    what a run needs besides constants, inputs and outputs; None: only by `bytes`. The default suits
    this machine: half of its memory.
    """

    bytes: int = field(default_factory=lambda: int(memory_bytes() * _DEFAULT_SHARE))
    nodes: int = 200_000
    rank: int = MAXIMUM_RANK
    seconds: float = 600.0
    loop_steps: int = 1_000_000
    loop_rows: int = 1024
    arena: int | None = None


class ResourceBudget:
    """Limits whose time runs from now on; each `check` raises `LimitError` before the work."""

    def __init__(self, limits: Limits | None = None) -> None:
        """`limits` are this machine's if None."""
        self.limits = Limits() if limits is None else limits
        self._end = time.monotonic() + self.limits.seconds

    def check_time(self, doing: str) -> None:
        """The time must not be over; `doing` says what would come next ("folding node x")."""
        if time.monotonic() > self._end:
            raise LimitError(
                f"{doing}: the model takes longer than {self.limits.seconds:g} seconds",
                hint="raise limits.seconds if it is meant to be so large",
            )

    def check_bytes(self, what: str, count: int) -> None:
        """`what` ("the constants of the model") must not need more bytes than allowed."""
        if count > self.limits.bytes:
            raise LimitError(
                f"{what} would take {_size(count)}, and {_size(self.limits.bytes)} are allowed",
                hint="raise limits.bytes if the machine that builds and runs it has the memory",
            )

    def check_arena(self, count: int) -> None:
        """A run must not need more bytes for its values than allowed."""
        allowed = self.limits.arena
        if allowed is not None and count > allowed:
            raise LimitError(
                f"the values between kernels take {_size(count)}, and {_size(allowed)} are allowed",
                hint="limits.memory, --max-memory; a smaller batch or image needs less",
            )

    def check_array(self, what: str, shape: Sequence[int], element_bytes: int) -> None:
        """An array must have a rank and a size that are allowed."""
        self.check_rank(what, shape)
        self.check_bytes(what, math.prod(shape) * element_bytes)

    def check_rank(self, what: str, shape: Sequence[int]) -> None:
        """`what` must have a rank that is allowed."""
        if len(shape) > self.limits.rank:
            raise LimitError(
                f"{what} has {len(shape)} dimensions, and {self.limits.rank} are allowed",
                hint=f"arrays have at most {MAXIMUM_RANK} dimensions (limits.rank)",
            )

    def check_nodes(self, what: str, count: int) -> None:
        """`what` ("the model") must not have more nodes than allowed."""
        if count > self.limits.nodes:
            raise LimitError(
                f"{what} has more than {self.limits.nodes} nodes",
                hint="functions and loops count each time they are used; limits.nodes allows more",
            )


def _size(count: int) -> str:
    """A number of bytes for people: `3.2 GB`, or in powers of ten where it is absurd."""
    if count >= 10**18:
        return f"10^{len(str(count)) - 1} bytes"
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"
