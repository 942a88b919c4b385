"""Step: a build or a timed run that has ended, for whoever wants to see what ran where and when."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from tunefarm.measure.farm.dispatch import BuildAction, TimeAction
from tunefarm.measure.measurement import MeasureResult
from tunefarm.measure.worker.build_candidate import BuildResult

LOST = "lost"


@dataclass(frozen=True, slots=True)
class Step:
    """A build by a builder (`is_build`), or a check and timed run in a slot, of a node by number.

    It `began` and `ended` at moments of this process's `time.monotonic`: when it was given away and
    when its answer came. `status` is that of the answer, or `lost` without any. The seconds are
    those that the worker told.
    """

    is_build: bool
    node: int
    index: int
    request_id: str
    workload: str
    began: float
    ended: float
    status: str = LOST
    build_seconds: float = 0.0
    check_seconds: float = 0.0
    run_seconds: float = 0.0


Watch: TypeAlias = Callable[[Step], None]


def watch_step(
    watch: Watch,
    action: BuildAction | TimeAction,
    future: Future[BuildResult] | Future[MeasureResult],
) -> None:
    """Have `watch` told of the step when it ends, by the thread that ends it."""
    began = monotonic()

    def notify(done: Future[BuildResult] | Future[MeasureResult]) -> None:
        answer = None if done.cancelled() or done.exception() is not None else done.result()
        request = action.job.request
        watch(
            Step(
                isinstance(action, BuildAction),
                action.node,
                action.index,
                request.request_id,
                request.workload_key,
                began,
                monotonic(),
                LOST if answer is None else str(answer.status),
                build_seconds=0.0 if answer is None else answer.build_seconds,
                check_seconds=getattr(answer, "check_seconds", 0.0),
                run_seconds=getattr(answer, "run_seconds", 0.0),
            )
        )

    future.add_done_callback(notify)
