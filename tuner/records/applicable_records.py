"""Which record of a kernel a build applies, and which ones are nominees that nobody has met here.

A schedule that is fast on one CPU may lose to the default one on another. So a record applies where
this database's own jobs, or a check (`tunefarm.tuner.verify.quick`), have measured it on a CPU of
this kind (`tunefarm.measure.machine.cpu_name`), with this version of the compiler:

    own, measured on this CPU                         confirmed here
    own, for another target than this machine's   ┐
    shipped with the package, of this CPU         ┴─  confirmed on the CPU that measured it
    measured on another CPU of the target         ┐
    imported, merged, or added as a pack          ├─  nominee, until a check has met it
    of another compiler version, if it replays    │
    confirmed against another default schedule    ┘

Several databases are layers: the first that has a record of a kernel decides, and all of them have
nominees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError, with_count
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target, host_target
from tunefarm.db import model_queries, queries
from tunefarm.db.additions import Addition, additions
from tunefarm.db.queries import Origin
from tunefarm.db.records import PlanRecord, TaskKey, TrialRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.measure.machine import cpu_name, known_as
from tunefarm.measure.measurement import is_unchanged
from tunefarm.tuner.records.trials import readable_record, record_to_apply, task_key
from tunefarm.tuner.records.unapplied import NOMINEE, Unapplied

CONFIRMED_HERE = "confirmed here"
CONFIRMED_ON = "confirmed on {}"
NOMINEES = 3
"""So many nominees of a kernel are looked at, the most promising first."""
_SOURCES_NAMED = 3
UNKNOWN_CPU = "an unknown CPU"


@dataclass(frozen=True, slots=True)
class Claim:
    """A record that speaks for a schedule: where it was measured, and how it came here.

    `confirmed`: a job has settled on it, or a check, and `unchanged`: it is the default schedule.
    `store` is the database that has it, `trials` are the ok ones that it was chosen from.
    `outdated`: it was never measured next to today's default schedule.
    """

    record: TrialRecord
    confirmed: bool
    cpu: str
    addition: Addition | None
    store: Store
    unchanged: bool = False
    trials: int = 1
    outdated: bool = False

    @property
    def came_from(self) -> str:
        """What makes it a nominee, in words."""
        source = f"measured on {self.cpu or UNKNOWN_CPU}"
        version = self.record.key.compiler_version
        if version != compiler.VERSION:
            source = f"of compiler version {version}, {source}"
        if self.addition is not None:
            return f"{source}, from {self.addition}"
        return f"{source} against another default schedule" if self.outdated else source


@dataclass(frozen=True, slots=True)
class KernelRecords:
    """What the databases have for one kernel.

    `taken` is the record that applies, None where none does; `searched` whether there was anything
    to choose from: more than one schedule was measured, or a job has settled. `nominees` are the
    records that may apply once they are met, the most promising first; `met` those whose schedules
    were measured here and lost; `unfit` those whose schedules do not fit the kernel any more;
    `later` those that come after `NOMINEES` others, or have a nominee's schedule.
    """

    taken: Claim | None = None
    searched: bool = False
    standing: str = ""
    nominees: tuple[Claim, ...] = ()
    met: tuple[Claim, ...] = ()
    unfit: tuple[Claim, ...] = ()
    later: tuple[Claim, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a nominee may be better than what applies."""
        return bool(self.nominees) and not self.is_tuned

    @property
    def is_tuned(self) -> bool:
        """Whether what applies was chosen among several, and is not the default schedule."""
        return self.taken is not None and self.searched and not self.taken.unchanged


def is_this(cpu: str) -> bool:
    """Whether what a record says of its CPU is true of this one; an early version said nothing."""
    return not cpu or cpu in known_as(cpu_name())


def own_origin(store: Store, target: str) -> Origin:
    """What counts of a database's records for the target with this key without being met."""
    return _Source.of(store, target == host_target().key).own


class ApplicableRecords:
    """What the databases have for kernels of one build. `layers` are asked after `store`, in their
    order. With `accept_nominees` a nominee is taken where nothing else is. Nominees of kernels that
    something better applies to are looked at only if it is `thorough`."""

    def __init__(
        self,
        store: Store,
        target: Target,
        threads: int,
        numerics: str,
        *,
        layers: Sequence[Store] = (),
        accept_nominees: bool = False,
        thorough: bool = False,
    ) -> None:
        self.stores = (store, *layers)
        self.like = task_key("", target, threads, numerics)
        self.is_host = target.key == host_target().key
        self._target = target
        self._accept_nominees, self._thorough = accept_nominees, thorough
        self._sources = [_Source.of(each, self.is_host) for each in self.stores]
        self._known: dict[str, KernelRecords] = {}

    @property
    def own(self) -> Origin:
        """What counts of the first database without being met."""
        return self._sources[0].own

    def key(self, workload: str) -> TaskKey:
        """The key under which records of a workload apply."""
        return replace(self.like, workload=workload)

    def of(self, workload: str) -> KernelRecords:
        """What is known of a kernel. Raises DatabaseError for a damaged record that is not left."""
        if workload not in self._known:
            self._known[workload] = self._find(workload)
        return self._known[workload]

    def kernel(self, workload: str) -> FusedKernel:
        """A kernel that has records. Raises TunefarmError for one that cannot be read."""
        return _kernel(self.stores, workload)

    def nominated(self, workloads: Iterable[str]) -> dict[str, KernelRecords]:
        """Those of these kernels that have nominees and nothing better, by workload."""
        found = {workload: self.of(workload) for workload in workloads}
        return {workload: records for workload, records in found.items() if records.is_open}

    def _find(self, workload: str) -> KernelRecords:
        key = self.key(workload)
        records = KernelRecords()
        measured: set[str] = set()
        claims: list[Claim] = []
        for source in self._sources:
            schedules = queries.schedules(source.store, key, source.own)
            measured |= schedules
            if records.taken is None and schedules:
                records = source.taken(key, schedules, self.is_host)
                if (claim := records.taken) is not None and self._is_outdated(claim, schedules):
                    claims.append(replace(claim, unchanged=False, outdated=True))
                    measured.discard(claim.record.schedule_hash)
                    records = KernelRecords()
        if records.is_tuned and not self._thorough:
            return records
        claims += [claim for source in self._sources for claim in source.nominees(key)]
        claims.sort(key=lambda claim: _promise(claim, key))
        nominees: dict[str, Claim] = {}
        met, unfit, later = [], [], []
        for claim in claims:
            hash = claim.record.schedule_hash
            if hash in measured:
                met.append(claim)
            elif hash in nominees or len(nominees) == NOMINEES:
                later.append(claim)
            elif _replays(claim.record, key, self.stores):
                nominees[hash] = claim
            else:
                unfit.append(claim)
        records = replace(
            records,
            nominees=tuple(nominees.values()),
            met=tuple(met),
            unfit=tuple(unfit),
            later=tuple(later),
        )
        if self._accept_nominees and records.is_open:
            first, *rest = records.nominees
            return replace(
                records, taken=first, searched=True, standing=NOMINEE, nominees=tuple(rest)
            )
        return records

    def _is_outdated(self, claim: Claim, measured: set[str]) -> bool:
        """Whether what was confirmed never met today's default schedule, which is not among those
        that this database has `measured`."""
        record = claim.record
        if not claim.confirmed:
            return False
        try:
            kernel = _kernel((claim.store,), record.key.workload)
        except TunefarmError:  # a damaged row, which is named elsewhere
            return False
        default = default_schedule(kernel, self._target, record.key.threads, record.key.numerics)
        return hash_json(default.to_json()) not in {record.reference, *measured}


@dataclass(frozen=True, slots=True)
class _Source:
    """One of the databases, and where its records are from."""

    store: Store
    own: Origin
    cpus: Mapping[int, str]
    additions: Mapping[int, Addition]

    @staticmethod
    def of(store: Store, is_host: bool) -> _Source:
        machines = queries.machines(store)
        cpus = {number: str(facts.get("cpu", "")) for number, facts in machines.items()}
        here = [n for n, cpu in cpus.items() if not is_host or is_this(cpu)]
        return _Source(store, Origin(None, tuple(here)), cpus, additions(store))

    def taken(self, key: TaskKey, schedules: set[str], is_host: bool) -> KernelRecords:
        """What applies of this database's own records; `schedules` are those that it measured."""
        found = readable_record(self.store, key, self.own)
        if found is None:
            return KernelRecords()
        claim = self._claim(found, None)
        if claim.confirmed and (settled := queries.best(self.store, key, self.own)) is not None:
            claim = replace(claim, unchanged=is_unchanged(settled[0].low, settled[0].high))
        is_here = (is_host or is_this(claim.cpu)) and not self.store.is_shipped
        standing = CONFIRMED_HERE if is_here else CONFIRMED_ON.format(claim.cpu)
        return KernelRecords(claim, claim.confirmed or len(schedules) > 1, standing)

    def nominees(self, key: TaskKey) -> list[Claim]:
        """What every other origin speaks for, one record each, also of other versions."""
        found = []
        for task in queries.tasks_of_workload(self.store, key.workload):
            if replace(task, compiler_version=key.compiler_version) != key:
                continue
            for origin, trials in self._origins(task):
                if task == key and origin.addition is None:
                    origin = replace(origin, machines=self._left(origin))
                applied = record_to_apply(self.store, task, origin) if origin.machines else None
                if applied is not None:
                    claim = self._claim(applied, origin.addition)
                    found.append(replace(claim, trials=trials))
        return found

    def _left(self, origin: Origin) -> tuple[int, ...]:
        """The machines of an origin whose records do not apply by themselves."""
        return tuple(number for number in origin.machines if number not in self.own.machines)

    def _origins(self, task: TaskKey) -> list[tuple[Origin, int]]:
        """Where a task's records are from: for each addition, the machines of each CPU, and the
        number of records."""
        found: dict[tuple[int | None, str], list[queries.OriginOfTask]] = {}
        for one in queries.origins(self.store, task):
            found.setdefault((one.addition, self.cpus.get(one.machine, "")), []).append(one)
        return [
            (Origin(addition, tuple(one.machine for one in group)), sum(o.trials for o in group))
            for (addition, _), group in found.items()
        ]

    def _claim(self, found: tuple[TrialRecord, bool], addition: int | None) -> Claim:
        record, confirmed = found
        came = None if addition is None else self.additions.get(addition)
        cpu = str(record.machine.get("cpu", ""))
        return Claim(record, confirmed, cpu, came, self.store)


def _promise(claim: Claim, key: TaskKey) -> tuple[bool, bool, float]:
    """Sorts claims: of this version first, then what was confirmed, then the newest."""
    record = claim.record
    return record.key != key, not claim.confirmed, -record.created


def _replays(record: TrialRecord, key: TaskKey, stores: Sequence[Store]) -> bool:
    """Whether a schedule fits its kernel; of another version that is tried."""
    try:
        schedule = Schedule.from_json(record.schedule)
        if record.key.compiler_version != key.compiler_version:
            lower(_kernel(stores, key.workload), schedule)
    except TunefarmError:
        return False
    except Exception:  # noqa: BLE001 - whatever a schedule from elsewhere breaks, it does not fit
        return False
    return True


def _kernel(stores: Sequence[Store], workload: str) -> FusedKernel:
    for store in stores:
        found = queries.workloads(store, [workload]).get(workload)
        if found is not None:
            return kernel_from_json(found.kernel)
    raise TunefarmError(f"no kernel is recorded of workload {workload}")


def nominees_left(kernels: Mapping[str, KernelRecords], is_host: bool) -> tuple[Unapplied, ...]:
    """That these kernels, by workload, have nominees that nobody has met: one reason or none."""
    if not kernels:
        return ()
    claims = [records.nominees[0] for records in kernels.values()]
    sources = Counter(claim.came_from for claim in claims)
    named = [f"{count} {source}" for source, count in sources.most_common(_SOURCES_NAMED)]
    more = len(sources) - len(named)
    named += [with_count(more, "other source")] if more else []
    has = "has a nominee" if len(kernels) == 1 else "have nominees"
    reason = (
        f"{with_count(len(kernels), 'kernel')} {has}, records that were not confirmed on this CPU: "
        f"{', '.join(named)}"
    )
    where = "" if is_host else " on a machine of that target"
    advice = f"tune verify --quick{where} measures them, --accept-nominees builds with them as is"
    records = sum(len(item.nominees) for item in kernels.values())
    return (Unapplied((NOMINEE,), records, len(kernels), reason, advice),)


@dataclass(frozen=True, slots=True)
class ApplicablePlan:
    """The plan of a model that applies, or the one that is left because it was chosen on another
    CPU, or comes from elsewhere."""

    applies: PlanRecord | None = None
    nominee: PlanRecord | None = None

    def taken(self, accept_nominees: bool) -> PlanRecord | None:
        """The plan that a build takes: a nominee only if these are accepted."""
        return self.applies or (self.nominee if accept_nominees else None)


def applicable_plan(
    store: Store, model_hash: str, target: Target, threads: int, kind: str
) -> ApplicablePlan:
    """What was last chosen for a model, of a database and its layers, by this version."""
    asked = (model_hash, target.key, threads, kind, compiler.VERSION)
    is_host = target.key == host_target().key
    for each in (store, *store.layers):
        known = {str(facts.get("cpu", "")) for facts in queries.machines(each).values()}
        cpus = known_as(cpu_name()) | (set() if is_host else {*known, ""})
        if not known or any(map(is_this, known)):
            cpus.add("")  # what an earlier version wrote, who measured here
        found = model_queries.newest_plan(each, *asked, cpus=cpus)
        if found is not None:
            return ApplicablePlan(found)
    for each in (store, *store.layers):
        found = model_queries.newest_plan(each, *asked)
        if found is not None:
            return ApplicablePlan(None, found)
    return ApplicablePlan()
