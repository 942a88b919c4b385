"""The only seam between tuning and compiling: kernel -> the best schedule in the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tunefarm.compiler.errors import DatabaseError, ScheduleError, TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.runtime.spec.kernel_report import (
    DEFAULT,
    NAIVE,
    TUNED,
    KernelReport,
)
from tunefarm.compiler.schedule.schedule import ChooseSchedule, Schedule, ScheduleChoice
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import (
    DEFAULT_NUMERICS,
    DETERMINISTIC_NUMERICS,
    INT8_ACTIVATIONS,
    STRICT_NUMERICS,
    Algorithm,
)
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import BestRecord, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.building.report import NOMINEE_LEFT
from tunefarm.tuner.records.applicable_records import ApplicableRecords, nominees_left, own_origin
from tunefarm.tuner.records.trials import readable_record, reference_note, task_key
from tunefarm.tuner.records.unapplied import PRECISION, Unapplied, Wanted, damaged, unapplied


def choose_from(
    store: Store,
    target: Target,
    threads: int,
    numerics: str,
    *,
    only_confirmed: bool = False,
    settled: Iterable[BestRecord] = (),
    applicable: ApplicableRecords | None = None,
) -> ChooseSchedule:
    """A function from a kernel to its best recorded schedule, None where there is no record.

    `settled` go before what the store has; `only_confirmed` leaves out what no job has settled.
    With `applicable` only those records count that these say. Without them all records of the task
    do: a job measures what it makes of them. A kernel of which nothing but the default schedule was
    tried has no tuned one.

    The function raises DatabaseError for a `settled` record whose schedule cannot be read.
    """

    first = {best.key: best for best in settled}

    def find(key: TaskKey) -> tuple[TrialRecord | None, bool]:
        """The record, and whether there was anything to choose from."""
        if key in first:
            return queries.trial_of(store, first[key]), True
        if applicable is not None:
            found = applicable.of(key.workload)
            return None if found.taken is None else found.taken.record, found.searched
        return _of_task(store, key, only_confirmed)

    def choose(kernel: FusedKernel) -> ScheduleChoice | None:
        record, searched = find(task_key(workload_key(kernel), target, threads, numerics))
        if record is None:
            return None
        try:
            schedule = Schedule.from_json(record.schedule)
        except ScheduleError as error:
            raise DatabaseError(
                f"{store.name}: record {record.number} holds no schedule: {error.message}",
                hint="tune db check tells more",
            ) from error
        is_open = not searched and _is_unsearched(schedule, kernel, target, record.key)
        source, number = DEFAULT if is_open else TUNED, str(record.number)
        if applicable is not None:
            found = applicable.of(record.key.workload)
            if found.taken is not None and found.taken.store is not store:
                number = f"{found.taken.store.label}:{number}"
        return ScheduleChoice(schedule, source, number, record.latency)

    return choose


def _of_task(store: Store, key: TaskKey, only_confirmed: bool) -> tuple[TrialRecord | None, bool]:
    """What all records of a task say, and whether there was anything to choose from."""
    record, confirmed = readable_record(store, key) or (None, False)
    if record is None or confirmed:
        return record, confirmed
    tried = queries.schedules(store, key, own_origin(store, key.target))
    return None if only_confirmed else record, len(tried) > 1


def _is_unsearched(schedule: Schedule, kernel: FusedKernel, target: Target, key: TaskKey) -> bool:
    """Whether a schedule is what the kernel gets without any record, and there are others."""
    from tunefarm.compiler.schedule.spaces import schedule_space

    try:
        space = schedule_space(kernel, target, key.threads, key.numerics)
        default = space.schedule(space.default())
        candidates = map(space.candidate, range(space.size))
        others = (space.schedule(candidate) != default for candidate in candidates)
        return schedule == default and any(others)
    except TunefarmError:
        return False


class Records:
    """What a database has for one build: `choose` gives schedules (None without a database)."""

    def __init__(
        self,
        store: Store | None,
        settings: Settings,
        target: Target,
        model_hash: str = "",
        *,
        accept_nominees: bool = False,
    ) -> None:
        """`model_hash` is that of the graph as it was imported. Records that nobody has met on this
        CPU apply only with `accept_nominees`."""
        self.choose: ChooseSchedule | None = None
        self.applicable: ApplicableRecords | None = None
        self._store, self._numerics = store, settings.compile.numerics
        self._target, self._model_hash = target, model_hash
        if store is None:
            return
        threads, numerics = settings.compile.threads, settings.compile.numerics
        self.applicable = ApplicableRecords(
            store,
            target,
            threads,
            numerics,
            layers=store.layers,
            accept_nominees=accept_nominees,
        )
        self.choose = choose_from(
            store,
            target,
            threads,
            numerics,
            applicable=self.applicable,
        )

    def chosen(self, kernels: Mapping[str, FusedKernel]) -> dict[str, ScheduleChoice | None]:
        """What `choose` gives for each of these kernels."""
        if self.choose is None:
            return {}
        return {key: self.choose(kernel) for key, kernel in kernels.items()}

    def notes(self, kernels: Iterable[KernelReport]) -> tuple[str, ...]:
        """What is to be known of these kernels of the build: those that no schedule fits, and what
        of the database could not be used, and why."""
        kernels = tuple(kernels)
        unscheduled = tuple(_unscheduled(item) for item in kernels if item.schedule_source == NAIVE)
        return (*unscheduled, *self._without_reference(kernels))

    def unapplied(self, kernels: Iterable[KernelReport]) -> tuple[Unapplied, ...]:
        """Why records were left that are of these kernels of the build, or of its model."""
        kernels = tuple(kernels)
        untuned = {item.key: item.name for item in kernels if item.schedule_source != TUNED}
        if self._store is None or self.applicable is None:
            return ()
        every = {item.key for item in kernels}
        left_out = [item for store in self.applicable.stores for item in damaged(store, every)]
        return (*left_out, *(self._inapplicable(kernels, every, untuned) if untuned else ()))

    def _inapplicable(
        self, kernels: Sequence[KernelReport], every: Collection[str], untuned: Mapping[str, str]
    ) -> tuple[Unapplied, ...]:
        """The same of records that are intact."""
        assert self._store is not None and self.applicable is not None
        nominated = self.applicable.nominated(untuned)
        claims = [claim for item in nominated.values() for claim in item.nominees]
        asked = (self.applicable.like, self._target, self._numerics, self._model_hash, every)
        wanted = Wanted(*asked, untuned, {claim.record.key for claim in claims})
        left = nominees_left(nominated, self.applicable.is_host)
        found = (*left, *unapplied(self._store, wanted))
        is_said = any(PRECISION in item.differs for item in found)
        return found if is_said else (*self._narrow(self._store, kernels), *found)

    def standings_of(self, kernels: Iterable[KernelReport]) -> dict[str, str]:
        """What the schedules of these kernels of the build rest on, by workload, as in a
        `KernelUse`."""
        if self.applicable is None:
            return {}
        result = {}
        for item in kernels:
            found = self.applicable.of(item.key)
            is_applied = item.schedule_source == TUNED and found.standing
            text = found.standing if is_applied else item.schedule_source
            result[item.key] = f"{text}, {NOMINEE_LEFT}" if found.is_open else text
        return result

    def _without_reference(self, kernels: Iterable[KernelReport]) -> tuple[str, ...]:
        """A line if records that were applied have lost what they were measured against."""
        if self._store is None:
            return ()
        applied = [k.record_id for k in kernels if k.schedule_source == TUNED and k.record_id]
        numbers = [int(record) for record in applied if record.isdecimal()]
        gone = queries.without_reference(self._store, numbers) if numbers else []
        return (reference_note(len(gone)),) if gone else ()

    def _narrow(self, store: Store, kernels: Iterable[KernelReport]) -> tuple[Unapplied, ...]:
        """That none of the kernels has been tuned that only this precision has, if so."""
        own = [item for item in kernels if item.numerics not in set(Algorithm)]
        if self._numerics in _OWN_TYPES or not own:
            return ()
        if any(kernel.schedule_source == TUNED for kernel in own):
            return ()
        count = "the kernel" if len(own) == 1 else f"any of the {len(own)} kernels"
        reason = f"{store.name} has no record of {count} with narrow factors"
        advice = f"tune with --precision {self._numerics}"
        return (Unapplied((PRECISION,), 0, len(own), reason, advice),)


_OWN_TYPES = (
    DEFAULT_NUMERICS.name,
    STRICT_NUMERICS.name,
    DETERMINISTIC_NUMERICS.name,
    INT8_ACTIVATIONS.name,
)
"""Precisions that keep the model's types."""


def _unscheduled(kernel: KernelReport) -> str:
    return f"{kernel.title} runs as scalar loops, many times slower than it should: {kernel.note}"
