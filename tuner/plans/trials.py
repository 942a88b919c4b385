"""Default schedules of the kernels that decide about a plan, measured by the runner of a job.

They are ordinary trials: the search that follows, other jobs and `tune db` have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.db.records import TargetRecord, TaskKey, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.records.trials import task_key, trial_record
from tunefarm.tuner.search.measuring import timing_options
from tunefarm.tuner.search.tasks import Planned, plan

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _Asked:
    """A kernel that is being measured, and what with."""

    key: str
    space: ScheduleSpace
    planned: Planned


class DefaultTrials:
    """Measures default schedules and records them; `stop` ends it early.

    `measured` counts those that were answered, by how they ended.
    """

    def __init__(
        self,
        store: Store,
        target: Target,
        settings: Settings,
        runner: Runner,
        *,
        job: str,
        most: int | None = None,
    ) -> None:
        """At most so many are measured; None: any number."""
        self.measured: Counter[str] = Counter()
        self._store, self._target, self._settings = store, target, settings
        self._runner, self._job = runner, job
        self._most = most
        self._number = 0
        self._stopped = False
        self._asked: set[str] = set()

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    @property
    def ended(self) -> bool:
        """Whether nothing more can be measured."""
        return self._stopped or (self._most is not None and self._number >= self._most)

    def measure(
        self, kernels: Mapping[str, FusedKernel], is_late: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Measure these kernels, by workload key, each once, until it `is_late`; the keys of those
        that were."""
        waiting = [key for key in kernels if key not in self._asked]
        pending: dict[str, _Asked] = {}
        done: list[str] = []

        def may_begin() -> bool:
            return not self.ended and not is_late()

        while pending or (waiting and may_begin()):
            while waiting and len(pending) < self._runner.capacity and may_begin():
                key = waiting.pop(0)
                self._asked.add(key)
                asked, request = self._request(key, kernels[key])
                pending[request.request_id] = asked
                self._runner.submit(request)
            results = self._runner.results(POLL_SECONDS)
            ours = [result for result in results if result.request_id in pending]
            done += self._take(ours, pending)
            if self._stopped:
                break
        return done

    def _request(self, key: str, kernel: FusedKernel) -> tuple[_Asked, MeasureRequest]:
        compile = self._settings.compile
        space = schedule_space(kernel, self._target, compile.threads, compile.numerics)
        default = plan(space, space.default())
        self._number += 1
        self._store.add([TargetRecord(self._target.key, self._target.to_json())])
        self._store.add([WorkloadRecord(key, kernel.name, kernel_to_json(kernel))])
        request = MeasureRequest(
            request_id=f"{self._job[:16]}-plan-{self._number}",
            kernel=kernel_to_json(kernel),
            workload_key=key,
            schedule=default.schedule,
            threads=compile.threads,
            options=timing_options(self._settings),
            seed=self._settings.search.seed + self._number,
            target=self._target.key,
            numerics=self._key(key).numerics,
        )
        return _Asked(key, space, default), request

    def _key(self, workload: str) -> TaskKey:
        compile = self._settings.compile
        return task_key(workload, self._target, compile.threads, compile.numerics)

    def _take(self, results: Sequence[MeasureResult], pending: dict[str, _Asked]) -> list[str]:
        records, keys = [], []
        for result in results:
            asked = pending.pop(result.request_id)
            candidate = asked.planned.candidate
            keys.append(asked.key)
            records.append(
                trial_record(
                    self._key(asked.key),
                    result,
                    sketch=candidate.sketch,
                    choices=asked.space.choices(candidate),
                    schedule=asked.planned.schedule,
                    job=self._job,
                )
            )
        self._store.add(records)
        self.measured.update(str(result.status) for result in results)
        return keys
