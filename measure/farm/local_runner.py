"""LocalRunner: worker processes on this machine, for tests, debugging, and where Ray is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tunefarm.measure.core_locks import CoreLocks
from tunefarm.measure.farm.pipeline_runner import PipelineRunner, lock_reports
from tunefarm.measure.farm.slots import ProcessPin, SlotPlan
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.sandbox.worker_process import Role
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.measure.worker.supervisor import BUILD, MEASURE, Supervisor


class _Worker:
    """A supervisor and the one thread that uses it (and so outlives its process)."""

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        self.supervisor = Supervisor(settings, role)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"tunefarm-{role.name}")
        self.thread.submit(self.supervisor.start)  # a failure shows again at the first request

    def close(self) -> None:
        self.supervisor.close()
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.supervisor.stop()


class LocalBackend:
    """Builders and slots of one node, each a supervised process."""

    def __init__(self, settings: WorkerSettings, plan: SlotPlan) -> None:
        """Start all workers. `settings.cores` is replaced by those of the plan."""
        self.plans: Sequence[SlotPlan] = (plan,)
        settings = replace(settings, alternates=plan.alternates)
        self._scratch = Path(settings.scratch)
        self._pin = ProcessPin()
        if plan.spare:
            self._pin.confine(plan.spare)
        self._builders = [
            _Worker(replace(settings, cores=(core,)), BUILD) for core in plan.build_cores
        ]
        self._slots = [_Worker(replace(settings, cores=cores), MEASURE) for cores in plan.slots]

    def build(self, node: int, index: int, request: MeasureRequest) -> Future[BuildResult]:
        """Build a candidate in one of this machine's builders."""
        worker = self._builders[index]
        return worker.thread.submit(worker.supervisor.build, request)

    def measure(
        self, node: int, index: int, request: MeasureRequest, build: BuildResult
    ) -> Future[MeasureResult]:
        """Check and time a candidate in one of this machine's slots."""
        worker = self._slots[index]
        return worker.thread.submit(worker.supervisor.measure, request, build)

    def worker_pids(self) -> list[int]:
        """Process ids of the live workers, builders first."""
        pids = (worker.supervisor.pid for worker in (*self._builders, *self._slots))
        return [pid for pid in pids if pid is not None]

    def close(self) -> None:
        """End the workers, and remove their files."""
        workers = (*self._builders, *self._slots)
        for worker in workers:
            worker.supervisor.close()
        for worker in workers:
            worker.close()
        self._pin.release()
        shutil.rmtree(self._scratch, ignore_errors=True)


class LocalRunner(PipelineRunner):
    """Measures on this machine's cores."""

    def __init__(
        self,
        settings: WorkerSettings,
        plan: SlotPlan,
        *,
        retries: int = 2,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """`notify` gets a sentence on what happens to cores."""
        self.backend = LocalBackend(settings, plan)
        super().__init__(self.backend, settings.threads, retries, notify=notify)
        if notify is not None:
            cores = (*plan.build_cores, *plan.timed)
            self.watch(lock_reports(CoreLocks(settings.driver), cores, notify))
