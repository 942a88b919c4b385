"""PlanningTime: how the seconds for a plan are shared by what finds it.

0.25  kernels of the model as it is      1.00  whole models decide
0.45  kernels of layouts                 1.25  regions, one by one
0.65  kernels of other kinds             1.50  leaving out those that gain nothing
0.75  looking at candidates
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tunefarm.compiler.with_count import with_count
from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.plans.problems import Kind

KERNELS, LAYOUT_KERNELS, OTHER_KERNELS = 0.25, 0.45, 0.65
"""When no kernel is measured any more: those of the model as it is, those that layouts lead to, and
those of other kinds."""
LOOKING, WHOLE, REGIONS, LEAVING_OUT = 0.75, 1.0, 1.25, 1.5
"""When no candidate is looked at any more, no plan compared, no region measured and none left out.
"""
LEAST_SECONDS = 8.0
"""With less the rules decide."""
MEASURABLE_SECONDS = 20.0
"""With less no kernel is measured: by the time that a runner has started they are half over."""


class PlanningTime:
    """The time since a search for a plan began, which may take so many `seconds` (None: any
    number) and is over at once when somebody asks for that."""

    def __init__(
        self,
        seconds: float | None,
        interrupt: Interrupt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._interrupt, self._clock = seconds, interrupt, clock
        self._begin = clock()

    def is_late(self, share: float = WHOLE) -> bool:
        """Whether so much of it has passed."""
        if self._interrupt.asked:
            return True
        return self._seconds is not None and self._clock() - self._begin > share * self._seconds

    def may_measure(self, kind: Kind) -> bool:
        """Whether a kernel that decisions of this kind lead to may be measured; OWN: one of the
        model as it is."""
        if not self.is_enough(MEASURABLE_SECONDS):
            return False
        shares = {Kind.OWN: KERNELS, Kind.LAYOUTS: LAYOUT_KERNELS}
        return not self.is_late(shares.get(kind, OTHER_KERNELS))

    def is_enough(self, seconds: float) -> bool:
        """Whether there were so many seconds from the beginning."""
        return self._seconds is None or self._seconds >= seconds

    def describe(self, measured: int) -> str:
        """What candidates were judged by, after so many kernels were measured."""
        if self.is_enough(MEASURABLE_SECONDS):
            return f"{with_count(measured, 'kernel')} measured for them"
        return "by what is known of their kernels, since there is little time"
