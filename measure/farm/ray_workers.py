"""What runs in the Ray worker processes of a node: one that builds, and the actor of a slot."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.measure.sandbox.versions import differences, installation
from tunefarm.measure.sandbox.worker_process import WorkerStartError
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import BuildResult
from tunefarm.measure.worker.supervisor import BUILD, MEASURE, Supervisor


def check_versions(drivers: Mapping[str, str]) -> None:
    """Raise `WorkerStartError` if this process has other versions than its driver: it was started
    after tunefarm was installed again, or edited."""
    here = installation()
    if different := differences(drivers, here.versions):
        raise WorkerStartError(
            f"a worker that imports {here.folder} runs other code than this job: {different}; "
            "install one version everywhere, and start the job again"
        )


class MeasuringSlot:
    """The actor that holds a measuring slot: a supervisor and its worker process."""

    def __init__(self, settings: WorkerSettings, drivers: Mapping[str, str]) -> None:
        """`drivers` are the versions that the driver has."""
        self._settings = settings
        self._drivers = drivers
        self._supervisor = Supervisor(settings, MEASURE)

    def start(self) -> int | None:
        """Have the worker process ready; its process id."""
        self._supervisor.start()
        return self._supervisor.pid

    def measure(self, request: MeasureRequest, build: BuildResult) -> MeasureResult:
        """Check and time a candidate, with the slot's cores for itself."""
        check_versions(self._drivers)
        return self._supervisor.measure(request, build)

    def close(self) -> None:
        """End the worker process and remove this node's scratch files."""
        self._supervisor.close()
        shutil.rmtree(self._settings.scratch, ignore_errors=True)


class Builder:
    """The actor of a builder. A crash of the compiler costs its process only.

    An actor and no task: of several drivers' idle workers Ray ends those that are more than the
    node has cores, and starting others takes longer than many builds.
    """

    def __init__(self, settings: WorkerSettings, core: int, drivers: Mapping[str, str]) -> None:
        """`drivers` are the versions that the driver has."""
        self._core = core
        self._drivers = drivers
        self._supervisor = Supervisor(settings, BUILD)

    def start(self) -> None:
        """Have the worker process ready."""
        self._supervisor.start()

    def build(self, request: MeasureRequest) -> BuildResult:
        """Build a candidate."""
        check_versions(self._drivers)
        return self._supervisor.build(request, self._core)

    def close(self) -> None:
        """End the worker process."""
        self._supervisor.close()
