"""A session on synthetic tasks: a store, a runner in this process, tasks made anew each time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.instant_runner import InstantRunner, measured
from tests.tuner.synthetic import TARGET, latency, matmul_kernel, small_space, tile_space
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.db import queries
from tunefarm.db.records import TargetRecord, TaskKey, WorkloadRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.placement import Placement
from tunefarm.tuner.confirm.finalists import Finalists
from tunefarm.tuner.model.cost_model import BoostedTrees
from tunefarm.tuner.model.features import FeatureExtractor
from tunefarm.tuner.reports.progress import Progress
from tunefarm.tuner.search.budget import Budget, End, Limits, TaskProgress
from tunefarm.tuner.search.job_coordination import Pauses
from tunefarm.tuner.search.session import SessionOptions, TuningSession
from tunefarm.tuner.search.strategy import Score, SearchProblem, make_strategy
from tunefarm.tuner.search.tasks import TaskSearch, TuningTask, plan

TILES = (matmul_kernel(), small_space(9), 1)
OTHER = (matmul_kernel(7, 13, 97), small_space(7), 3)


class SyntheticRunner(InstantRunner):
    """The latency of the candidate that a schedule stands for."""

    def __init__(self, capacity: int = 4) -> None:
        super().__init__(capacity)
        self.answers: dict[tuple[str, str], float] = {}
        self.noise = 0.0

    def answer(self, request: MeasureRequest) -> MeasureResult:
        hashes = [hash_json(schedule) for schedule in request.schedules]
        times = [self.answers[request.workload_key, hash] for hash in hashes]
        if math.inf in times:
            alone = "fresh_process" in request.options  # nobody noted whose turn it was
            culprit = None if alone else times.index(math.inf)
            error = "signal 11"
            return MeasureResult(request.request_id, Status.CRASHED, error=error, culprit=culprit)
        noise = 1.0 + self.noise * (len(self.requests) % 3)
        result = measured(request, [noise * seconds for seconds in times])
        return replace(result, machine={"cpu": "made-up", "load": 0.5})


class Messages(Progress):
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


class Setting:
    """A store, a runner and tasks made anew for each run, as by a new process."""

    def __init__(self, path: Path, store: type[Store] = Store) -> None:
        self.path = path
        self.store = store.open(path)
        self.runner: SyntheticRunner = SyntheticRunner()
        self.session: TuningSession | None = None
        self.placements: tuple[Placement, ...] = ()
        self.progress = Messages()
        self.pauses = Pauses()
        self.spare: Callable[[], float] | None = None
        self.batch = 4
        self.numerics = "default"

    def tasks(self, model: BoostedTrees, *kinds: tuple[FusedKernel, ScheduleSpace, int]) -> None:
        self.store.add([TargetRecord(TARGET.key, TARGET.to_json())])
        self.made: list[TuningTask] = []
        for kernel, space, occurrences in kinds:
            extract = FeatureExtractor(space, kernel, TARGET)
            key = TaskKey(workload_key(kernel), TARGET.key, 1, self.numerics, "1")
            value = kernel_to_json(kernel)
            self.store.add([WorkloadRecord(key.workload, kernel.name, value)])
            problem = SearchProblem(space, scorer(model, extract), 0, features=extract.of_rows)
            strategy = make_strategy("cost_model", problem)
            default = plan(space, space.default())
            search = TaskSearch(space, strategy, first=[default.candidate])
            progress = TaskProgress(occurrences)
            task = TuningTask(kernel, value, key, space, extract, search, progress, default)
            task.placements = self.placements
            task.resume(queries.trials(self.store, key))
            self.made.append(task)
            answers = tile_answers() if len(space.sketches) > 1 else self.answers(space)
            for hash, seconds in answers.items():
                self.runner.answers.setdefault((key.workload, hash), seconds)

    def answers(self, space: ScheduleSpace) -> dict[str, float]:
        candidates = map(space.candidate, range(space.size))
        return {plan(space, c).hash: self.latency(c) for c in candidates}

    def latency(self, candidate: Candidate) -> float:
        return 1e-3 / (1 + candidate.positions[0])

    def run(self, limits: Limits, *kinds: tuple[FusedKernel, ScheduleSpace, int]) -> End:
        model = BoostedTrees(0)
        self.tasks(model, *kinds)
        self.job = self.store.start_job("model", "hash", {}).id
        self.session = TuningSession(
            self.made,
            self.runner,
            self.store,
            model,
            Budget(limits),
            SessionOptions(self.batch, {}, background=False),
            job=self.job,
            progress=self.progress,
            pauses=self.pauses,
            spare=self.spare,
        )
        return self.session.run()

    def confirm(self, *, out_of_time: bool = False) -> Finalists:
        """Let the finalists meet, and believe the outcome."""
        finalists = Finalists(self.store, job=self.job, seed=0)
        finalists.run(self.made, self.runner, {}, lambda _: out_of_time, lambda: None)
        self.store.add(settled.best for settled in finalists.settled)
        return finalists


def scorer(model: BoostedTrees, extract: FeatureExtractor) -> Score:
    return lambda rows: model.predict(extract.of_rows(rows))


@cache
def tile_answers() -> dict[str, float]:
    space = tile_space()
    candidates = map(space.candidate, range(space.size))
    return {plan(space, c).hash: latency(space, c) for c in candidates}
