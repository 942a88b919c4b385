"""How a job measures, from its settings: the runner, the options of a request, the cores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.measure.cpus import usable_cpus
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.farm.slots import plan_slots
from tunefarm.measure.machine import on_cores
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.worker.timer import FEWEST, MORE_ROUNDS, TimingOptions
from tunefarm.tuner.from_settings import targets_of

Item = TypeVar("Item")

TIMING_SHARE = 0.5  # of what a run may take; the rest is for its check


def runner_of(settings: Settings, target: Target, notify: Callable[[str], None]) -> Runner:
    """The runner that the settings name; `tell` gets what it found out about the machine."""
    return create_runner(settings.measure.runner, runner_options(settings, target, notify))


def runner_options(
    settings: Settings, target: Target, notify: Callable[[str], None] | None = None
) -> RunnerOptions:
    """How the settings have a runner measure."""
    measure = settings.measure
    return RunnerOptions(
        threads=settings.compile.threads,
        targets=targets_of(settings) if settings.compile.targets else (target,),
        slots=measure.slots,
        builders=measure.builders,
        address=measure.address or "local",
        token_file=measure.token_file,
        overlap=measure.overlap,
        notify=notify,
    )


REQUEST_SECONDS = 1.0  # of one request, building included, roughly
_POLL_SECONDS = 0.25  # longest wait for results, so that an interrupt is noticed soon


class SideMeasurements(ABC, Generic[Item]):
    """Measurements that a job makes while there is time, next to its search; `stop` ends it early.

    What fails or scatters is left out.
    """

    def __init__(self, job: str, what: str, seed: int) -> None:
        self._name, self._seed = f"{job[:16]}-{what}", seed
        self._number = 0
        self._stopped = False

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    def _next(self) -> tuple[str, int]:
        """The id and the seed of one more request."""
        self._number += 1
        return f"{self._name}-{self._number}", self._seed + self._number

    @abstractmethod
    def _request(self, item: Item, options: Mapping[str, float | int]) -> MeasureRequest:
        """What to measure of an item."""

    @abstractmethod
    def _take(self, item: Item, result: MeasureResult) -> None:
        """Keep what was measured."""

    def _measure(
        self,
        items: Iterable[Item],
        runner: Runner,
        options: Mapping[str, float | int],
        out_of_time: Callable[[float], bool],
    ) -> None:
        """Measure the items in their order; `out_of_time` tells whether so many seconds from now
        is too late."""
        waiting, pending = iter(items), dict[str, Item]()
        while not out_of_time(0.0):
            while (
                len(pending) < runner.capacity
                and not (self._stopped or out_of_time(REQUEST_SECONDS))
                and (following := next(waiting, None)) is not None
            ):
                request = self._request(following, options)
                pending[request.request_id] = following
                runner.submit(request)
            if not pending:
                break
            for result in runner.results(_POLL_SECONDS):
                item = pending.pop(result.request_id, None)
                if item is not None and result.status is Status.OK:
                    self._take(item, result)


def timing_options(settings: Settings) -> dict[str, float | int]:
    """The options of a request, from the settings.

    Slow kernels lose rounds, but there is time for all rounds of two fast ones on a noisy machine.
    """
    measure = settings.measure
    rounds = MORE_ROUNDS * measure.samples
    wanted = max(TimingOptions().max_seconds, 2 * rounds * measure.min_sample_seconds)
    return {
        "samples": measure.samples,
        "min_samples": FEWEST,
        "min_sample_seconds": measure.min_sample_seconds,
        "max_seconds": min(wanted, TIMING_SHARE * measure.run_timeout),
        "unstable_limit": measure.unstable_above,
        "build_timeout": measure.build_timeout,
        "run_timeout": measure.run_timeout,
    }


def off_the_slots(settings: Settings) -> AbstractContextManager[None]:
    """Keep this thread, which proposes and trains, off the cores that time candidates."""
    if settings.measure.address is not None:  # they are other machines'
        return nullcontext()
    plan = plan_slots(usable_cpus(), settings.compile.threads, slots=settings.measure.slots)
    return nullcontext() if plan.alternates else on_cores(plan.spare)
