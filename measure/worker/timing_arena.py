"""The memory in which a kernel is timed: its buffers in one arena, placed as a model places them.

    | guard page | canary | input | canary | output | canary | workspace | canary | guard page |

All schedules of a request run in the same one. Outputs, inputs and canaries are verified after the
timed runs, as those of the tight buffers are before.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.placement import PERIOD, Placement, Span, buffer_sizes
from tunefarm.measure.sandbox.guarded import GuardedPages, holds, next_canary, view
from tunefarm.measure.worker.reference import Reference

_HUGE_FROM = 4 * 1024 * 1024  # bytes: as NumPy does, which allocates the arenas of executables


@dataclass(frozen=True, slots=True)
class _Margin:
    """Bytes of a gap that hold the canary, and the buffers that the gap is between."""

    bytes: npt.NDArray[np.uint8]
    below: str  # empty for none
    above: str


class TimingArena:
    """A kernel's inputs, output and workspace at the offsets of a placement."""

    def __init__(self, kernel: FusedKernel, reference: Reference, placement: Placement) -> None:
        self._reference = reference
        self._placement = placement
        self._sizes = buffer_sizes(kernel)
        self._output = kernel.output
        inputs = [buffer.name for buffer in kernel.inputs if not buffer.constant]
        self._names = (*inputs, "output", "workspace")
        self._canary = next_canary()
        self._spans: tuple[Span, ...] = ()
        self._pages: GuardedPages | None = None
        self._margins: list[_Margin] = []
        self._filled: int | None = None  # the case whose inputs are there
        self._others: GuardedPages | None = None  # where timed calls write their outputs as well

    @property
    def nbytes(self) -> int:
        """Memory held."""
        held = (self._pages, self._others)
        return sum(pages.nbytes for pages in held if pages is not None)

    @property
    def addresses(self) -> dict[str, int]:
        """Where each input is, and "output" and "workspace"."""
        return {
            name: self._base + span.begin
            for name, span in zip(self._names, self._spans, strict=True)
        }

    def outputs(self, count: int) -> list[int]:
        """Addresses of `count` places for the output: its own, then others that meet the same sets
        of the private caches. Raises MemoryError."""
        own = self.addresses["output"]
        step = -(-self._sizes[-1] // PERIOD) * PERIOD
        needed = (count - 1) * step + PERIOD
        if count > 1 and (self._others is None or self._others.nbytes < needed):
            self._drop_others()
            self._others = GuardedPages(needed, huge=needed >= _HUGE_FROM)
            self._others.touch()
        if count == 1 or self._others is None:
            return [own]
        begin = self._others.address + (own - self._others.address) % PERIOD
        return [own, *(begin + number * step for number in range(count - 1))]

    def _drop_others(self) -> None:
        if self._others is not None:
            self._others.close()
            self._others = None

    @property
    def _base(self) -> int:
        assert self._pages is not None, "make_room comes first"
        return self._pages.address

    def make_room(self, workspace_bytes: int) -> None:
        """Place the buffers, with a workspace of so many bytes; addresses hold until the next time.

        Raises MeasureError when the placement does not fit the kernel, MemoryError.
        """
        spans = self._placement.spans(self._sizes, workspace_bytes)
        if spans == self._spans:
            return
        needed = max(span.end for span in spans)
        if self._pages is None or self._pages.nbytes < needed:
            self.close()
            self._pages = GuardedPages(needed, huge=needed >= _HUGE_FROM)
            self._pages.touch()
        self._spans = spans
        self._margins = self._lay_canaries()

    def touch(self) -> None:
        """Have all pages there, as a model that was run before finds them."""
        for pages in (self._pages, self._others):
            if pages is not None:
                pages.touch()

    def prepare(self, case: int, poison: int) -> None:
        """Have the inputs of a case there, and every byte of the output be `poison`."""
        if self._filled != case:
            self._fill(case)
        span = self._spans[-2]
        ctypes.memset(self._base + span.begin, poison, span.end - span.begin)

    @property
    def output(self) -> Array:
        """The output as it is, without a copy."""
        span = self._spans[-2]
        memory = view(self._base + span.begin, span.end - span.begin)
        return memory.view(self._output.dtype.numpy).reshape(self._output.shape)

    def damage(self) -> str:
        """Where a canary was overwritten, in words; empty when all are whole."""
        for margin in self._margins:
            if margin.bytes.min() != self._canary or margin.bytes.max() != self._canary:
                return self._described(margin)
        return ""

    def changed_input(self, case: int) -> str:
        """The name of an input that is not that of the case; empty if none differs."""
        inputs = self._reference.cases[case].stored
        for name, span in zip(self._names[:-2], self._spans, strict=False):
            if not holds(self._base + span.begin, inputs[name]):
                return name
        return ""

    def mend(self) -> None:
        """Put canaries and inputs right again, so that it shows who damages them."""
        self._margins = self._lay_canaries()
        self._filled = None

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        self._drop_others()
        if self._pages is not None:
            self._pages.close()
            self._pages = None
        self._spans, self._margins, self._filled = (), [], None

    def _fill(self, case: int) -> None:
        inputs = self._reference.cases[case].stored
        for name, span in zip(self._names[:-2], self._spans, strict=False):
            array = np.ascontiguousarray(inputs[name])
            ctypes.memmove(self._base + span.begin, array.ctypes.data, array.nbytes)
        self._filled = case

    def _lay_canaries(self) -> list[_Margin]:
        """Fill the gaps; of a wide one, such as room that no workspace needs, both ends."""
        margins: list[_Margin] = []
        named = [
            (span, name)
            for span, name in zip(self._spans, self._names, strict=True)
            if span.end > span.begin
        ]
        below, begin = "", 0
        end = 0 if self._pages is None else self._pages.nbytes
        end_of_all = Span(end, end)
        for span, name in (*sorted(named, key=lambda pair: pair[0].begin), (end_of_all, "")):
            if span.begin - begin > PERIOD:
                half = PERIOD // 2
                margins.append(self._margin(begin, begin + half, below, ""))
                margins.append(self._margin(span.begin - half, span.begin, "", name))
            elif span.begin > begin:
                margins.append(self._margin(begin, span.begin, below, name))
            below, begin = name, span.end
        return margins

    def _margin(self, begin: int, end: int, below: str, above: str) -> _Margin:
        memory = view(self._base + begin, end - begin)
        memory[:] = self._canary
        return _Margin(memory, below, above)

    def _described(self, margin: _Margin) -> str:
        wrong = np.flatnonzero(margin.bytes != self._canary)
        after = int(wrong[0]) + 1
        before = len(margin.bytes) - int(wrong[-1])
        if margin.below and (not margin.above or after <= before):
            return f"wrote {after} byte(s) after the end of {margin.below}"
        return f"wrote {before} byte(s) before the start of {margin.above or 'the guard page'}"
