"""`tune verify --quick`: whether records from elsewhere are a gain on this CPU, in seconds.

Only kernels whose best records are nominees (`tunefarm.tuner.records.applicable_records`) are
measured: each nominee in pairs with the default schedule, in one process, and in a second one where
that leaves it open. One that is faster beyond doubt is settled for its kernel; where none is, the
default schedule is. Then the model that these make meets the untuned one, and if it is slower, none
of them stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeAlias

from tunefarm.compiler.errors import MeasureError, SettingsError, with_count
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.runtime.execution.executable import load
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings, names_database
from tunefarm.configs.temporary_folders import temporary_folder
from tunefarm.db.records import (
    BestRecord,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from tunefarm.db.store import Store
from tunefarm.measure.compare import Comparison
from tunefarm.measure.farm.make_runner import create_runner
from tunefarm.measure.farm.runner import Runner, RunnerOptions
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureRequest, MeasureResult, Status
from tunefarm.tuner.building.flow import build
from tunefarm.tuner.building.record import with_records
from tunefarm.tuner.building.request import BuildRequest, BuildResult
from tunefarm.tuner.confirm.latency import COMPARISON, ModelLatency, compare_models
from tunefarm.tuner.confirm.verdict import Meeting, judge
from tunefarm.tuner.confirm.whole_model import agreement
from tunefarm.tuner.from_settings import target_of
from tunefarm.tuner.records.applicable_records import ApplicableRecords, Claim, KernelRecords
from tunefarm.tuner.records.trials import trial_record
from tunefarm.tuner.records.unapplied import runs_here
from tunefarm.tuner.search.measuring import timing_options

PROCESSES = 2
"""In which a nominee meets the default schedule, at most."""
ROUNDS = 16
SLICE_SECONDS = 0.25  # of all slices of one schedule in a process, at most
MODEL_SECONDS = 4.0
"""For the whole model, once its kernels have been met."""
_DEFAULT, _NOMINEE = 0, 1
_UNDECIDED = (Status.INFRASTRUCTURE, *LOST_TO_NOISE)

MakeRunner: TypeAlias = Callable[[Settings, Target], Runner]
CompareBuilds: TypeAlias = Callable[[str, str], ModelLatency]
"""Latencies of two artifacts by their paths, the untuned one first."""


@dataclass(frozen=True, slots=True)
class Met:
    """What became of a nominee: its time over the default schedule's, None where that was not
    measured; whether it applies from now on; and why not, in words."""

    kernel: str
    key: TaskKey
    claim: Claim
    compared: Comparison | None
    applies: bool
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = self.compared
        return {
            "kernel": self.kernel,
            "key": self.key.workload,
            "record": self.claim.record.number,
            "from": self.claim.came_from,
            "ratio": None if found is None else found.ratio,
            "low": None if found is None else found.low,
            "high": None if found is None else found.high,
            "applies": self.applies,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """What a quick check came to; `latency` is that of the model with what it has accepted over
    the untuned one, None where nothing was. `open` are kernels whose nominees nobody has met yet,
    since the machine was too noisy, or failed."""

    model: str
    met: tuple[Met, ...]
    latency: ModelLatency | None = None
    open: int = 0
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> int:
        """The kernels that a nominee applies to from now on."""
        return sum(item.applies for item in self.met)


def verify_quick(
    request: BuildRequest,
    notify: Callable[[str], None],
    *,
    make_runner: MakeRunner | None = None,
    compare: CompareBuilds | None = None,
) -> QuickCheck:
    """Let the nominees of a model's kernels meet the default schedules, and record the verdicts.

    `make_runner` and `compare` replace the measurements on this machine. Raises TunefarmError for
    what cannot be built, for a target whose code cannot run here, and for a database that cannot be
    written.
    """
    settings, target = request.settings, target_of(request.settings)
    if make_runner is None and not runs_here(target.to_json()):
        raise SettingsError(
            f"this machine cannot run code for {target.cpu}",
            hint="verify on a machine of that target",
        )
    with temporary_folder("verify") as folder:
        path = str(folder / "tuned.tuned")
        asked = replace(request, output=path, listed=False)
        create = not names_database(settings)
        with Store.open(settings.database.url, create=create, leave_damaged=True):
            pass  # it can be written
        result = build(asked)
        for line in result.report.damage:
            notify(line)
        check = _Check(asked, target, make_runner or _local_runner)
        met = check.run(result, notify)
        if not any(item.applies for item in met):
            return QuickCheck(request.name, tuple(met), None, check.open)
        untuned = str(folder / "untuned.tuned")
        build(replace(asked, output=untuned, untuned=True))
        build(asked)
        notify("measuring the model with them and the untuned one, interleaved")
        latency = (compare or check.compare_builds)(untuned, path)
        notes: tuple[str, ...] = ()
        if latency.is_slower:
            met = check.give_up(met)
            notes = ("the model is slower with them than untuned: none of them applies",)
        return QuickCheck(request.name, tuple(met), latency, check.open, notes)


@dataclass(slots=True)
class _Pair:
    """A kernel whose nominees meet its default schedule, one after the other."""

    name: str
    kernel: FusedKernel
    key: TaskKey
    default: TrialRecord  # what is recorded of it, without times
    claims: list[Claim]  # who is still to be met; the first is being met
    meetings: list[Meeting] = field(default_factory=list)
    results: list[MeasureResult] = field(default_factory=list)
    asked: int = 0
    lost: list[Claim] = field(default_factory=list)


class _Check:
    """The nominees of one model; what they come to goes to the settings' database.

    That is open for as long as something is written: builds look at its file.
    """

    _store: Store

    def __init__(self, request: BuildRequest, target: Target, make_runner: MakeRunner) -> None:
        self.open = 0
        self._settings, self._databases = request.settings, request.databases
        self._target, self._make_runner = target, make_runner
        self._kernels: dict[str, FusedKernel] = {}
        self._defaults: dict[str, TrialRecord] = {}  # recorded, by workload
        self._pending: dict[str, _Pair] = {}

    def run(self, built: BuildResult, notify: Callable[[str], None]) -> list[Met]:
        """Meet the nominees of the kernels that were built."""
        with Store.open(
            self._settings.database.url, create=False, leave_damaged=True
        ) as self._store:
            return self._run(built, notify)

    def _run(self, built: BuildResult, notify: Callable[[str], None]) -> list[Met]:
        compile = self._settings.compile
        names = {use.report.key: use.report.title for use in built.report.kernels}

        def nominated(reading: Store | None) -> list[_Pair]:
            assert reading is not None
            applicable = ApplicableRecords(
                reading, self._target, compile.threads, compile.numerics, layers=reading.layers
            )
            return [
                self._pair(applicable, names[key], key, records)
                for key, records in applicable.nominated(names).items()
            ]

        pairs = with_records(self._databases, nominated)
        if not pairs:
            return []
        count = sum(len(pair.claims) for pair in pairs)
        kernels = with_count(len(pairs), "kernel")
        notify(f"measuring {with_count(count, 'nominee')} of {kernels} against default schedules")
        met: list[Met] = []
        with self._make_runner(self._settings, self._target) as runner:
            waiting = list(pairs)
            while waiting or self._pending:
                while waiting and len(self._pending) < runner.capacity:
                    runner.submit(self._request(waiting.pop(0)))
                for result in runner.results():
                    pair = self._pending.pop(result.request_id)
                    met += self._take(pair, result)
                    if pair.claims:
                        waiting.append(pair)
        places = {pair.key: place for place, pair in enumerate(pairs)}
        return sorted(met, key=lambda item: places[item.key])

    def _pair(
        self, applicable: ApplicableRecords, name: str, key: str, records: KernelRecords
    ) -> _Pair:
        task = applicable.key(key)
        kernel = applicable.kernel(key)
        self._kernels[key] = kernel
        space = schedule_space(kernel, self._target, task.threads, task.numerics)
        candidate = space.default()
        default = TrialRecord(
            task,
            "",
            candidate.sketch,
            space.choices(candidate),
            space.schedule(candidate).to_json(),
            Status.OK,
        )
        self._store.add([TargetRecord(self._target.key, self._target.to_json())])
        self._store.add([WorkloadRecord(key, kernel.name, kernel_to_json(kernel))])
        return _Pair(name, kernel, task, default, list(records.nominees))

    def _request(self, pair: _Pair) -> MeasureRequest:
        pair.asked += 1
        nominee = pair.claims[0].record
        request = MeasureRequest(
            request_id=f"check-{uuid.uuid4().hex}",
            kernel=kernel_to_json(pair.kernel),
            workload_key=pair.key.workload,
            schedule=pair.default.schedule,
            threads=pair.key.threads,
            options={
                **timing_options(self._settings),
                "samples": ROUNDS,
                "fresh_process": 1,
                "max_seconds": 2 * SLICE_SECONDS,
            },
            rivals=(nominee.schedule,),
            seed=pair.asked,
            target=pair.key.target,
            numerics=pair.key.numerics,
        )
        self._pending[request.request_id] = pair
        return request

    def _take(self, pair: _Pair, result: MeasureResult) -> list[Met]:
        """What one process has come to; its nominee stays the first one where it is not decided."""
        claim = pair.claims[0]
        is_whole = len(result.rivals) == 1 and result.samples
        if is_whole and result.status in (Status.OK, *LOST_TO_NOISE):
            pair.meetings.append({_DEFAULT: result.samples, _NOMINEE: result.rivals[0]})
            pair.results.append(replace(result, status=Status.OK, error=""))
        elif result.status not in _UNDECIDED and result.culprit != _DEFAULT:
            failed = self._record(pair, replace(result, samples=(), rivals=()), None)
            return self._lose(pair, None, f"{failed.status} here")
        verdict = judge(pair.meetings) if pair.meetings else None
        compared = None if verdict is None else verdict.against_default[_NOMINEE]
        if verdict is not None and compared is not None:
            if verdict.winner == _NOMINEE:
                return self._win(pair, compared)
            if compared.low > 1.0 or pair.asked >= PROCESSES:
                why = "slower here" if compared.low > 1.0 else "not clearly faster here"
                self._record(pair, self._joined(pair), compared)
                return self._lose(pair, compared, why)
        elif pair.asked >= PROCESSES:
            self.open += 1
            pair.claims.clear()
            text = "too noisy" if result.status in LOST_TO_NOISE else result.status.value
            return [Met(pair.name, pair.key, claim, None, False, f"not measured: {text}")]
        return []

    @staticmethod
    def _joined(pair: _Pair) -> MeasureResult:
        """All slices of the nominee, next to those of the default schedule."""
        samples = tuple(s for meeting in pair.meetings for s in meeting[_NOMINEE])
        defaults = tuple(s for meeting in pair.meetings for s in meeting[_DEFAULT])
        return replace(pair.results[-1], samples=samples, rivals=(defaults,))

    def _win(self, pair: _Pair, compared: Comparison) -> list[Met]:
        claim = pair.claims[0]
        record = self._record(pair, self._joined(pair), compared)
        self._settle(pair.key, record, compared, [*pair.lost, claim])
        pair.claims.clear()
        return [Met(pair.name, pair.key, claim, compared, True)]

    def _lose(self, pair: _Pair, compared: Comparison | None, why: str) -> list[Met]:
        claim = pair.claims.pop(0)
        pair.lost.append(claim)
        pair.meetings, pair.results, pair.asked = [], [], 0
        if not pair.claims and (default := self._defaults.get(pair.key.workload)) is not None:
            self._settle(pair.key, default, None, pair.lost)
        return [Met(pair.name, pair.key, claim, compared, False, why)]

    def _record(
        self, pair: _Pair, result: MeasureResult, compared: Comparison | None
    ) -> TrialRecord:
        """Record a nominee that was met, and the default schedule that it has met."""
        nominee, default = pair.claims[0].record, pair.default
        if compared is not None:
            default = self._default_of(pair, result)
        record = trial_record(
            pair.key,
            result,
            sketch=nominee.sketch,
            choices=nominee.choices,
            schedule=nominee.schedule,
            job=None,
            reference=None if compared is None else default.schedule_hash,
            latency=None if compared is None else compared.ratio * (default.latency or 0.0),
        )
        if compared is not None:
            ratio, low, high = compared.ratio, compared.low, compared.high
            record = replace(record, ratio=ratio, low=low, high=high)
        self._store.add([record])
        return record

    def _default_of(self, pair: _Pair, result: MeasureResult) -> TrialRecord:
        """The default schedule's trial, recorded once."""
        known = self._defaults.get(pair.key.workload)
        if known is None:
            alone = replace(result, samples=result.rivals[0], rivals=())
            known = trial_record(
                pair.key,
                alone,
                sketch=pair.default.sketch,
                choices=pair.default.choices,
                schedule=pair.default.schedule,
                job=None,
                latency=median(alone.samples),
            )
            self._store.add([known])
            self._defaults[pair.key.workload] = known
        return known

    def _settle(
        self,
        key: TaskKey,
        record: TrialRecord,
        compared: Comparison | None,
        met: Iterable[Claim],
    ) -> None:
        """Settle a kernel on a nominee, or without a comparison on its default schedule."""
        default = self._defaults[key.workload]
        found = compared or Comparison(1.0, 1.0, 1.0, 0)
        hashes = {default.schedule_hash, *(claim.record.schedule_hash for claim in met)}
        best = BestRecord(
            key=key,
            schedule_hash=record.schedule_hash,
            request_id=record.request_id,
            default_latency=default.latency or 0.0,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            met=tuple(sorted(hashes)),
            job=None,
        )
        self._store.add([best])

    def give_up(self, met: Iterable[Met]) -> list[Met]:
        """Settle the kernels of which a nominee was accepted on their default schedules."""
        found = []
        with Store.open(
            self._settings.database.url, create=False, leave_damaged=True
        ) as self._store:
            for item in met:
                if item.applies:
                    default = self._defaults[item.key.workload]
                    self._settle(item.key, default, None, [item.claim])
                    item = replace(item, applies=False, why="the whole model is slower")
                found.append(item)
        return found

    def compare_builds(self, untuned: str, tuned: str) -> ModelLatency:
        """Both artifacts in interleaved pairs on this machine."""
        options = replace(COMPARISON, max_seconds=MODEL_SECONDS)
        agree = agreement(self._kernels.values())
        try:
            return compare_models(load(untuned), load(tuned), None, options, agree)
        except MeasureError as error:
            hint = "a record gives wrong code, or the machine fails: tune db check --replay 100"
            raise MeasureError(error.message, hint=hint) from error


def _local_runner(settings: Settings, target: Target) -> Runner:
    options = RunnerOptions(threads=settings.compile.threads, targets=(target,), builders=1)
    return create_runner("local", options)
