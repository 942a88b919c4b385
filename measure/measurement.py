"""What a measurement is asked for and what it answers: the values that cross process boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a measurement ended. Everything but OK keeps its text in `MeasureResult.error`.

    `SCATTERED` is a right result whose slices are noisy against a reference that is quiet. UNSTABLE
    is what earlier versions called a measurement that was noisy by itself: the host's fault, as
    often as not. INFRASTRUCTURE says nothing about the candidate: no worker could be had for it.
    QUARANTINED says little, but enough to stay away: two workers were lost while they had it.
    """

    OK = "ok"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    CRASHED = "crashed"
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    OUT_OF_MEMORY = "out_of_memory"
    UNSTABLE = "unstable"
    INFRASTRUCTURE = "infrastructure"
    QUARANTINED = "quarantined"
    SCATTERED = "scattered"


LOST_TO_NOISE = frozenset((Status.SCATTERED, Status.UNSTABLE))
"""Right results that say too little about speed."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """One candidate to build, check and time.

    `kernel` and `schedule` are the canonical JSON values (`tunefarm.compiler.kernels.serialize`,
    `Schedule.to_json`), so that a request needs no object of the driver. `request_id` comes back
    unchanged in the result. `options` are the timing options, see `tunefarm.measure.worker.timer`.

    With `rivals`, further schedules of the kernel, it is a comparison: all are timed in turn in
    `options["samples"]` rounds, in an order drawn from `seed`.

    `target` is the key of the target that it is built for and timed on; "": the runner's only one.
    `numerics` names the precision whose code it is (`tunefarm.compiler.types.numerics`).

    `sizes` are the run-time sizes of its model that it is checked and timed at; none: the maximum.

    `placements`: where the buffers lie while it is timed, by `tunefarm.measure.placement`. None:
    one after the other; one: for all schedules; as many as schedules: each has its own.
    """

    request_id: str
    kernel: Any
    workload_key: str
    schedule: list[Any]
    threads: int
    options: Mapping[str, float | int] = field(default_factory=dict)
    rivals: tuple[list[Any], ...] = ()
    seed: int = 0
    placements: tuple[list[int], ...] = ()
    target: str = ""
    numerics: str = "default"
    sizes: tuple[int, ...] = ()

    @property
    def schedules(self) -> list[list[Any]]:
        """The schedule and those of its rivals."""
        return [self.schedule, *self.rivals]


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """What became of a request. `samples` are seconds per call, raw, in the order taken.

    `censored`: the samples are few, because they were clearly above the incumbent's latency. Of a
    comparison, `rivals` has the samples of each rival, the i-th taken next to the i-th of
    `samples`; when it failed, `culprit` is the number of the schedule to blame, if known.
    """

    request_id: str
    status: Status
    samples: tuple[float, ...] = ()
    error: str = ""
    build_seconds: float = 0.0
    check_seconds: float = 0.0
    run_seconds: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)  # fingerprint, load, steal
    censored: bool = False
    rivals: tuple[tuple[float, ...], ...] = ()
    culprit: int | None = None

    @property
    def latency(self) -> float:
        """Median of the samples in seconds; infinity unless the status is OK."""
        if self.status is not Status.OK or not self.samples:
            return float("inf")
        ordered = sorted(self.samples)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def is_unchanged(low: float, high: float) -> bool:
    """Whether an interval is that of a build and itself: at 1, and without a width.

    What was measured always has a width.
    """
    return low == high == 1.0
