"""Supervisor: keeps a worker process for building or measuring, and asks it for candidates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from tunefarm.measure.core_locks import CoreLocks, CoreUse
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.sandbox.messages import Message
from tunefarm.measure.sandbox.worker_process import (
    CoresLostError,
    Role,
    WorkerEndedError,
    WorkerEndError,
    WorkerLostError,
    WorkerProcess,
    WorkerStartError,
)
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.measure.worker.timer import TimingOptions

BUILD = Role("build", "tunefarm.measure.worker.build_role:BuildRole", 1000)
MEASURE = Role("measure", "tunefarm.measure.worker.measure_role:MeasureRole", 5000)
_BLAMELESS = (Status.OK, Status.SCATTERED, Status.INFRASTRUCTURE)
_BUILD_STATUS = {Status.RUN_TIMEOUT: Status.BUILD_TIMEOUT, Status.CRASHED: Status.BUILD_ERROR}


class Supervisor:
    """Keeps one worker process of a role, and replaces it when it misbehaves.

    While that builds or times, it holds the locks of its cores. Use from one thread only, except
    `close`.
    """

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        self._settings = settings
        self._role = role
        self._worker: WorkerProcess | None = None
        self._closed = False
        self._locks = CoreLocks(settings.driver, stop=lambda: self._closed)

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._worker.pid if self._worker is not None else None

    def start(self) -> None:
        """Have a worker process ready; raises WorkerStartError when it does not start."""
        worker = self._worker
        if worker is not None and worker.alive and worker.served < self._role.most_requests:
            return
        self.stop()
        if self._closed:
            raise WorkerStartError("the runner is closed")
        self._worker = WorkerProcess(self._settings, self._role)
        if self._closed:
            self.stop()
            raise WorkerStartError("the runner is closed")

    def stop(self) -> None:
        """End the worker process; the next request starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        """Kill the worker process, even in the middle of a request. From any thread."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()

    def build(self, request: MeasureRequest) -> BuildResult:
        """Build a candidate; raises WorkerLostError on a failure that is not its own,
        CoresLostError for cores that may not be used any more."""
        timeout = TimingOptions.of(request.options).build_timeout
        fields = {
            "request": {**asdict(request), "options": dict(request.options)},
            "cores": list(self._settings.cores),
            "cpu_seconds": 2 * timeout + 1,
        }
        try:
            with self._held(self._settings.cores, "build"):
                reply = self._ask(Message(fields), timeout)
        except WorkerEndError as end:
            status = _BUILD_STATUS.get(end.status, end.status)
            return BuildResult(status, b"", end.text, culprit=_culprit(request, end.in_flight) or 0)
        return BuildResult(
            Status(reply.fields["status"]),
            reply.blob,
            str(reply.fields["error"]),
            float(reply.fields.get("build_seconds", 0.0)),
            int(reply.fields.get("culprit", 0)),
        )

    def measure(self, request: MeasureRequest, build: BuildResult) -> MeasureResult:
        """Check and time a built candidate; raises WorkerLostError on a failure not its own,
        CoresLostError for cores that may not be used any more."""
        options = TimingOptions.of(request.options)
        fields = {
            "kernel": request.kernel,
            "workload_key": request.workload_key,
            "options": dict(request.options),
            "seed": request.seed,
            "placements": request.placements,
            "target": request.target,
            "sizes": request.sizes,
            "cores": list(self._settings.cores),
            "cpu_seconds": 2 * options.run_timeout * self._settings.threads + 1,
        }
        if options.fresh_process:
            self.stop()
        message = Message(fields, build.candidates)
        try:
            with self._held(self._settings.cores, "time"):
                reply = self._ask(message, options.run_timeout).fields
        except WorkerEndError as end:
            return MeasureResult(
                request.request_id,
                end.status,
                (),
                end.text,
                build.build_seconds,
                culprit=_culprit(request, end.in_flight),
            )
        status = Status(reply["status"])
        return MeasureResult(
            request.request_id,
            status,
            tuple(float(sample) for sample in reply.get("samples", ())),
            str(reply["error"]),
            build.build_seconds,
            float(reply.get("check_seconds", 0.0)),
            float(reply.get("run_seconds", 0.0)),
            dict(reply.get("machine", {})),
            bool(reply.get("censored", False)),
            tuple(tuple(map(float, samples)) for samples in reply.get("rivals", ())),
            None if status in _BLAMELESS else _culprit(request, reply.get("culprit")),
        )

    def _held(self, cores: Sequence[int], turn: CoreUse) -> AbstractContextManager[None]:
        return self._locks.held(cores, turn, alone=self._settings.alternates)

    def _ask(self, message: Message, timeout: float) -> Message:
        """One request to a live worker. Raises WorkerEndError; WorkerLostError if not to blame."""
        self.start()
        assert self._worker is not None
        try:
            reply = self._worker.request(message, timeout)
        except WorkerEndError as end:
            self.stop()
            if end.reported:
                raise WorkerEndedError(end.text) from None
            if self._closed or end.status is Status.INFRASTRUCTURE:
                raise WorkerLostError(end.text) from None
            raise
        if reply.fields.get("lost_cores"):
            self.stop()
            raise CoresLostError(reply.fields["error"])
        if reply.fields["status"] != Status.OK:
            reported = {"culprit": self._worker.in_flight, **reply.fields}
            reported["error"] = self._worker.with_output(reply.fields["error"])
            reply = Message(reported, reply.blob)
        if reply.fields.get("retire"):
            self.stop()
        return reply


def _culprit(request: MeasureRequest, in_flight: int | None) -> int | None:
    """Which schedule of the request is to blame, whose number a process left; None if unknown."""
    if not request.rivals or in_flight is None:
        return None
    return in_flight if 0 <= in_flight < len(request.schedules) else None
