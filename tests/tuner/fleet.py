"""A small model whose kernels have records from several CPUs, and what schedules cost on each.

Costs are made up: of a schedule on a CPU, by a hash of both, so that what is fast on one may be
slow on another. Replayed measurements scatter around them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import onnx

from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.space import Candidate, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings, load_settings
from tunefarm.db.records import BestRecord, TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.farm.replay_runner import RecordKey, ReplayRunner, record_key
from tunefarm.measure.machine import cpu_name
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.records.trials import task_key


def record_kernel(
    store: Store, kernel: FusedKernel, target: Target, threads: int = 1, version: str | None = None
) -> TaskKey:
    """The key of a kernel's records in a store that has the kernel and the target from now on."""
    store.add([TargetRecord(target.key, target.to_json())])
    key = task_key(workload_key(kernel), target, threads, "default")
    store.add([WorkloadRecord(key.workload, kernel.name, kernel_to_json(kernel))])
    return key if version is None else replace(key, compiler_version=version)


def trial_of(
    key: TaskKey, space: ScheduleSpace, candidate: Candidate, latency: float, **changes: Any
) -> TrialRecord:
    """What a job records of a candidate that went well."""
    choices = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in space.choices(candidate).items()
    }
    schedule = space.schedule(candidate).to_json()
    record = TrialRecord(key, "r", candidate.sketch, choices, schedule, "ok", latency=latency)
    return replace(record, **changes)


def other_table(target: Target) -> Target:
    """The same target with another table: half of the cache and more cores, no part of its key."""
    return replace(target, l2_bytes=target.l2_bytes // 2, cores=64)


HERE, ELSEWHERE = cpu_name(), "Another CPU 9000"
ROUNDS = 16
CANDIDATES = 6
DEFAULT_SECONDS = 1e-5


@dataclass(slots=True)
class Schedules:
    """A kernel's default schedule, first, and others, with their candidates."""

    kernel: FusedKernel
    space: ScheduleSpace
    candidates: list[Candidate] = field(default_factory=list)
    _values: list[list[Any]] = field(default_factory=list)

    @staticmethod
    @cache
    def of(kernel: FusedKernel, target: Target) -> Schedules:
        space, draw = schedule_space(kernel, target, 1, "default"), random.Random(7)
        found = Schedules(kernel, space)
        for number in range(200):
            candidate = space.sample(draw) if number else space.default()
            value = space.schedule(candidate).to_json()
            if value not in found._values:
                found._values.append(value)
                found.candidates.append(candidate)
            if len(found.candidates) == CANDIDATES:
                break
        return found

    def json(self, number: int) -> list[Any]:
        """The schedule with this number."""
        return self._values[number]


class Fleet:
    """A folder with the model, and databases of records of its kernels."""

    def __init__(
        self, path: Path, target: Target | None = None, model: onnx.ModelProto | None = None
    ) -> None:
        self.path, self.target = path, target or host_target()
        self.model = path / "tiny.onnx"
        onnx.save(model or tiny_model(), self.model)
        calls = kernels_of(str(self.model)).calls
        kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
        self.kernels = {workload_key(kernel): kernel for kernel in kernels}

    @cached_property
    def schedules(self) -> dict[str, Schedules]:
        """The schedules of each kernel, by workload."""
        return {key: Schedules.of(kernel, self.target) for key, kernel in self.kernels.items()}

    @property
    def searchable(self) -> list[str]:
        """The kernels that have more than their default schedules."""
        return [key for key, found in self.schedules.items() if len(found.candidates) > 2]

    def cost(self, workload: str, schedule: list[Any], cpu: str) -> float:
        """Seconds of a schedule on a CPU; the default one takes as long everywhere."""
        name = record_key(workload, schedule)[1]
        if name == record_key(workload, self.schedules[workload].json(0))[1]:
            return DEFAULT_SECONDS
        text = repr((workload, name, cpu))
        share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32
        return DEFAULT_SECONDS * (0.4 + 1.4 * share)

    def store(self, name: str = "tuning.db") -> Store:
        """A database of this folder with the model's kernels."""
        store = Store.open(self.path / name)
        for kernel in self.kernels.values():
            record_kernel(store, kernel, self.target)
        return store

    def key(self, workload: str, version: str = compiler.VERSION) -> TaskKey:
        """The key of a kernel's records."""
        key = task_key(workload, self.target, 1, "default")
        return TaskKey(key.workload, key.target, key.threads, key.numerics, version)

    def trials(
        self,
        workload: str,
        cpu: str = HERE,
        version: str = compiler.VERSION,
        numbers: Iterable[int] = range(CANDIDATES),
        created: float = 1.0,
    ) -> list[TrialRecord]:
        """What a search on that CPU has recorded of the schedules with these numbers."""
        found = self.schedules[workload]
        return [
            TrialRecord(
                self.key(workload, version),
                f"{cpu[:20]}-{version}-{number}",
                found.candidates[number].sketch,
                found.space.choices(found.candidates[number]),
                found.json(number),
                "ok",
                self.cost(workload, found.json(number), cpu),
                machine={"cpu": cpu, "cores": 2},
                created=created + number,
            )
            for number in numbers
            if number < len(found.candidates)
        ]

    def tune(
        self,
        store: Store,
        cpu: str = HERE,
        version: str = compiler.VERSION,
        workloads: Sequence[str] | None = None,
    ) -> None:
        """Record what a job on that CPU finds: trials, and the fastest of them as the best."""
        job = store.start_job("tiny.onnx", "hash", {})
        for workload in self.kernels if workloads is None else workloads:
            default, *others = self.trials(workload, cpu, version)
            best = min([default, *others], key=lambda trial: trial.latency or 0.0)
            ratio = (best.latency or 0.0) / DEFAULT_SECONDS
            bounds = (ratio, ratio * 0.99, ratio * 1.01) if best != default else (1.0, 1.0, 1.0)
            store.add([default, *(_against(trial, default) for trial in others)])
            names = best.schedule_hash, best.request_id
            store.add([BestRecord(best.key, *names, DEFAULT_SECONDS, *bounds, (), job.id)])
        store.finish_job(job.id, "finished")

    def settings(self, database: str = "tuning.db", **more: Any) -> Settings:
        """Settings of a build from a database of this folder alone, with a cache of its own."""
        values = {
            "database.url": str(self.path / database),
            "cache.folder": str(self.path / "cache"),
            "database.shipped": False,
        }
        return load_settings(None, {**values, **more}, environment={})

    def request(self, database: str = "tuning.db", **options: Any) -> BuildRequest:
        """A build of the model."""
        settings = self.settings(database, **options.pop("settings", {}))
        return BuildRequest(str(self.model), str(self.path / "tiny.tuned"), settings, **options)

    def build(self, database: str = "tuning.db", **options: Any) -> tuple[bytes, BuildResult]:
        """The artifact of the model, and what is said of it."""
        request = self.request(database, **options)
        result = build(request)
        return Path(request.output).read_bytes(), result

    def runner(self, cpu: str, noise: float = 0.01, others: Sequence[Fleet] = ()) -> ReplayRunner:
        """What measures on that CPU every schedule that this fleet knows, and those of others."""
        draw, recorded = random.Random(1), dict[RecordKey, MeasureResult]()
        for fleet in (self, *others):
            for workload, schedule in fleet.known():
                cost = self.cost(workload, schedule, cpu)
                samples = tuple(cost * draw.lognormvariate(0.0, noise) for _ in range(ROUNDS))
                result = MeasureResult("", Status.OK, samples, machine={"cpu": HERE, "cores": 2})
                recorded[record_key(workload, schedule)] = result
        return ReplayRunner(recorded)

    def known(self) -> Iterator[tuple[str, list[Any]]]:
        """Every schedule with its workload."""
        for workload, found in self.schedules.items():
            yield from ((workload, found.json(n)) for n in range(len(found.candidates)))

    def time(self, store: Store, result: BuildResult, cpu: str = HERE) -> float:
        """The time of a built model over the untuned one's, by the costs on a CPU."""
        tuned = untuned = 0.0
        for use in result.report.kernels:
            untuned += use.report.occurrences * DEFAULT_SECONDS
            tuned += use.report.occurrences * self.time_of(store, use.report.record_id, cpu)
        return tuned / untuned

    def time_of(self, store: Store, record: str | None, cpu: str) -> float:
        """The cost of a record's schedule; of the default one without a record."""
        from tunefarm.db import queries

        if record is None:
            return DEFAULT_SECONDS
        (trial,) = queries.numbered(store, [int(record)])
        return self.cost(trial.key.workload, trial.schedule, cpu)


def faster(_untuned: str, _tuned: str) -> ModelLatency:
    """A comparison of artifacts in which the tuned one wins."""
    return ModelLatency(1.0, 0.9, 0.0, 0.0, 0.9, 0.89, 0.91)


def slower(_untuned: str, _tuned: str) -> ModelLatency:
    """One in which it loses."""
    return ModelLatency(1.0, 1.1, 0.0, 0.0, 1.1, 1.09, 1.11, is_slower=True)


def _against(trial: TrialRecord, default: TrialRecord) -> TrialRecord:
    """A trial as a job records it that has timed it in turns with the default schedule."""
    ratio = (trial.latency or 0.0) / DEFAULT_SECONDS
    return replace(
        trial,
        samples=(trial.latency or 0.0,),
        reference=default.schedule_hash,
        ratio=ratio,
        low=ratio * 0.99,
        high=ratio * 1.01,
        reference_samples=(DEFAULT_SECONDS,),
    )
