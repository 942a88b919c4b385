"""Why records of a database were not applied: what they are for, how many, and what to type.

Asked of one build, or of one record's key: both are told by the same comparison of keys.

    12 records of 5 kernels are for 2 threads: build with --threads 2, or tune with --threads 1
    31 records of 4 kernels are for znver4 (this CPU lacks avx512bf16): tune on this machine
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import with_count
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS
from tunefarm.configs.settings import HOST, load_target, targets
from tunefarm.configs.target_key import code_facts, target_key
from tunefarm.db.records import TaskKey

if TYPE_CHECKING:  # a build that is repeated reads reports, and no database
    from tunefarm.db import queries
    from tunefarm.db.store import Store

THREADS, TARGET, PRECISION, VERSION = "threads", "target", "precision", "compiler version"
FAILED, NOMINEE, DAMAGED = "failed", "nominee", "damaged"
TUNE_AGAIN = "tune again"
NO_SCHEDULE = "holds no schedule"
"""What is wrong with a record that is what was written, and no use."""
MOST_LINES = 4
"""Of the reasons that hold for the fewest kernels only the number is given."""
_NAMED_FEATURES = 3


@dataclass(frozen=True, slots=True)
class Unapplied:
    """Records that were not applied, all for the same reason.

    `differs` are the parts of their key that are others (THREADS, TARGET, PRECISION, VERSION), or
    FAILED, NOMINEE for those that nobody has met on this CPU, or DAMAGED; `advice` is what to type,
    "" where that depends.
    """

    differs: tuple[str, ...]
    records: int
    kernels: int
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}" if self.advice else self.reason

    def to_json(self) -> dict[str, Any]:
        """The reason as JSON values."""
        return {**asdict(self), "differs": list(self.differs)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Unapplied:
        """The inverse; `KeyError` or `TypeError` on other JSON."""
        return Unapplied(**{**data, "differs": tuple(data["differs"])})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a build takes records of: the key that they have but for the workload, its target and
    precision, and the keys of its kernels, of those without a record the names too. `nominees` are
    the tasks whose records are left because nobody has met them."""

    like: TaskKey
    target: Target
    precision: str
    model_hash: str = ""
    kernels: Collection[str] = ()
    untuned: Mapping[str, str] = field(default_factory=dict)
    nominees: Collection[TaskKey] = ()


@dataclass(frozen=True, slots=True)
class _Other:
    """What records are for that differs from what is wanted."""

    threads: int | None = None
    target: str | None = None
    precision: str | None = None
    version: str | None = None

    @property
    def differs(self) -> tuple[str, ...]:
        parts = zip(
            (THREADS, TARGET, PRECISION, VERSION),
            (self.threads, self.target, self.precision, self.version),
            strict=True,
        )
        return tuple(name for name, value in parts if value is not None)


def unapplied(store: Store, wanted: Wanted) -> list[Unapplied]:
    """Why records of the build's kernels, and others of its model, are not applied; [] where every
    kernel has a record. What most kernels have comes first, and first of all what failed."""
    if not wanted.untuned:
        return []
    from tunefarm.db import queries

    found = queries.related_tasks(
        store, list(wanted.untuned), wanted.model_hash, wanted.like.compiler_version
    )
    own = [task for task in found if not task.records and _is_own(task, wanted)]
    failed = [_failed(store, task.key, wanted.untuned[task.key.workload]) for task in own]
    return [*filter(None, failed), *_differing(store, found, wanted)]


def unapplied_of(store: Store, wanted: Wanted, workload: str) -> list[Unapplied]:
    """The same of one kernel, whether or not it has a record that applies: the records whose keys
    are others."""
    from tunefarm.db import queries

    version = wanted.like.compiler_version
    found = queries.related_tasks(store, [workload], "", version)
    return _differing(store, [task for task in found if task.key.workload == workload], wanted)


def _differing(
    store: Store, found: Iterable[queries.RelatedTask], wanted: Wanted
) -> list[Unapplied]:
    """Why the records of these tasks do not apply whose keys are not what is wanted."""
    from tunefarm.db import queries

    records: Counter[_Other] = Counter()
    kernels: dict[_Other, set[str]] = {}
    for task in found:
        workload = task.key.workload
        if not task.records or (workload in wanted.kernels and workload not in wanted.untuned):
            continue  # nothing to apply, or its kernel has a record
        if task.key in wanted.nominees:
            continue  # said of nominees
        other = _compare(task, wanted)
        if other.differs:
            records[other] += task.records
            kernels.setdefault(other, set()).add(workload)
    described = {key: row.description for key, row in queries.targets(store).items()}
    by_kernels = sorted(kernels, key=lambda other: (-len(kernels[other]), len(other.differs)))
    lines = [
        _line(other, records[other], len(kernels[other]), wanted, described)
        for other in by_kernels[:MOST_LINES]
    ]
    rest = by_kernels[MOST_LINES:]
    if rest:
        more = sum(records[other] for other in rest)
        count = len(set[str]().union(*(kernels[other] for other in rest)))
        reason = f"{_count(more, count)} for {with_count(len(rest), 'other combination')}"
        lines.append(Unapplied((), more, count, reason, "tune db list names them"))
    return lines


def damaged(store: Store, kernels: Collection[str]) -> list[Unapplied]:
    """What is left of the database because it is damaged, whatever it is of: one reason or none.
    `kernels` are the workloads that count."""
    from tunefarm.db import queries

    count = sum(bool(queries.damaged(store, key)) for key in kernels) if store.damaged else 0
    return _damaged(store, queries.damaged(store), count)


def damaged_of(store: Store, workload: str) -> list[Unapplied]:
    """The same of one kernel's records."""
    from tunefarm.db import queries

    return _damaged(store, queries.damaged(store, workload), 1)


def _command_for_damage(store: Store) -> str:
    """What to type where rows are left out: the new file has all but these; of a server, a list."""
    if "://" in store.name:
        return shlex.join(["tune", "db", "check", "--db", store.name])
    path = Path(store.name)
    new = path.with_name(f"{path.stem}.intact{path.suffix}")
    return shlex.join(["tune", "db", "salvage", store.name, "--output", str(new)])


def _damaged(store: Store, rows: Mapping[str, str], kernels: int) -> list[Unapplied]:
    if not rows:
        return []
    named = [f"{name} ({problem})" for name, problem in rows.items()]
    more = len(named) - MOST_LINES
    named[MOST_LINES:] = [f"and {more} more"] if more > 0 else []
    verb = "is" if len(rows) == 1 else "are"
    rows_are = f"{with_count(len(rows), 'row')} of {store.name} {verb} damaged and left out"
    no_schedules = all(NO_SCHEDULE in problem for problem in rows.values())
    advice = TUNE_AGAIN if no_schedules else _command_for_damage(store)
    return [Unapplied((DAMAGED,), len(rows), kernels, f"{rows_are}: {', '.join(named)}", advice)]


def _is_own(task: queries.RelatedTask, wanted: Wanted) -> bool:
    """Whether it is a task of the build itself."""
    return task.key.workload in wanted.untuned and not _compare(task, wanted).differs


def _failed(store: Store, key: TaskKey, name: str) -> Unapplied | None:
    """That none of a kernel's trials was ok; None if it has no trial."""
    from tunefarm.db import queries

    counts = queries.count_trials(store, key)
    if not counts:
        return None
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    reason = f"{name} was tuned, but no trial can be applied: {statuses}"
    return Unapplied((FAILED,), sum(counts.values()), 1, reason)


def _compare(task: queries.RelatedTask, wanted: Wanted) -> _Other:
    """What of a task is another one; of another version of the compiler that alone counts."""
    key, like = task.key, wanted.like
    if key.compiler_version != like.compiler_version:
        return _Other(version=key.compiler_version)
    precision = None
    if key.numerics != like.numerics:
        precision = key.numerics
    elif key.workload not in wanted.untuned:  # a kernel that only another precision has
        precision = _precision_of(task.settings, wanted.precision)
    return _Other(
        threads=None if key.threads == like.threads else key.threads,
        target=None if key.target == like.target else key.target,
        precision=precision,
    )


def _precision_of(settings: Sequence[Any], wanted: str) -> str | None:
    """The precision of the jobs with these settings; None where one of them has the wanted one."""
    names = set()
    for value in settings:
        compile = value.get("compile") if isinstance(value, Mapping) else None
        names.add(compile.get("numerics") if isinstance(compile, Mapping) else None)
    texts = sorted(name for name in names if isinstance(name, str))
    return None if wanted in texts or not texts else texts[0]


def _line(
    other: _Other,
    records: int,
    kernels: int,
    wanted: Wanted,
    described: Mapping[str, Any],
) -> Unapplied:
    clauses = []
    if other.version is not None:
        clauses.append(
            f"of compiler version {other.version} (this is {wanted.like.compiler_version})"
        )
    if other.threads is not None:
        clauses.append(f"for {with_count(other.threads, 'thread')}")
    if other.target is not None:
        text = target_text(other.target, described.get(other.target), wanted.target)
        clauses.append(f"for {text}")
    if other.precision is not None:
        the = "the " if other.precision == DEFAULT_NUMERICS.name else ""
        clauses.append(f"in {the}{other.precision} precision")
    reason = f"{_count(records, kernels)} {' and '.join(clauses)}"
    advice = _advice(other, wanted, described)
    return Unapplied(other.differs, records, kernels, reason, advice)


def _count(records: int, kernels: int) -> str:
    verb = "is" if records == 1 else "are"
    return f"{with_count(records, 'record')} of {with_count(kernels, 'kernel')} {verb}"


def _advice(other: _Other, wanted: Wanted, described: Mapping[str, Any]) -> str:
    """The options that take these records, and those to tune with for what was wanted."""
    if other.version is not None:
        return TUNE_AGAIN
    build, tune = [], []
    if other.threads is not None:
        build.append(f"--threads {other.threads}")
        tune.append(f"--threads {wanted.like.threads}")
    if other.precision is not None:
        build.append(f"--precision {other.precision}")
        tune.append(f"--precision {wanted.precision}")
    where = ""
    if other.target is not None:
        name = name_of(other.target)
        is_host = wanted.target.key == host_target().key
        where = "on this machine" if is_host else f"for {wanted.target.cpu}"
        if name is None or not runs_here(described.get(other.target)):
            return " ".join(["tune", where, *_with(tune)])
        build.append(f"--targets {name}")
    again = " ".join(["tune", *filter(None, [where]), *_with(tune)])
    return f"build {' '.join(_with(build))}, or {again}"


def _with(options: Sequence[str]) -> list[str]:
    return ["with", *options] if options else []


def target_text(key: str, description: Any, wanted: Target) -> str:
    """What a recorded target is to one that is wanted, e.g. `znver4 (this CPU lacks fma)`."""
    if target_key(description) is None:
        return key
    here = wanted.to_json()
    own, other = code_facts(here), code_facts(description)
    is_host = wanted.key == host_target().key
    this = "this CPU" if is_host else f"the target {wanted.cpu}"
    lacking = sorted(set(other["features"]) - set(own["features"]))
    more = sorted(set(own["features"]) - set(other["features"]))
    if own["platform"] != other["platform"]:
        details = [f"{other['platform']}; {this} is {own['platform']}"]
    else:
        details = [f"{this} lacks {_names(lacking)}"] if lacking else []
        details += [f"{this} has {_names(more)} too"] if more else []
        for name, text in (("lanes", "vectors of {} floats"), ("tile_palette", "tiles of {}")):
            if not details and own.get(name) != other.get(name):
                details.append(f"{text.format(other.get(name))}; {this}: {own.get(name)}")
        if not details:
            details.append(
                f"LLVM takes this CPU for {wanted.cpu}"
                if is_host
                else f"the target is {wanted.cpu}"
            )
    kind = "another " if other["cpu"] == own["cpu"] else ""
    return f"{kind}{other['cpu']} ({', '.join(details)})"


def _names(features: Sequence[str]) -> str:
    named, rest = features[:_NAMED_FEATURES], len(features) - _NAMED_FEATURES
    more = [with_count(rest, "more feature")] if rest > 0 else []
    return " and ".join(filter(None, [", ".join(named), *more]))


def name_of(key: str) -> str | None:
    """What `--targets` calls the target with this key; None where it has no name."""
    if key == host_target().key:
        return HOST
    return _named_targets().get(key)


@cache
def _named_targets() -> Mapping[str, str]:
    described = ((name, load_target(name).model_dump()) for name in targets())
    return {Target.from_json(value).key: name for name, value in described}


def runs_here(description: Any) -> bool:
    """Whether code for the target with this description runs on this machine."""
    if target_key(description) is None:
        return False
    here, other = code_facts(host_target().to_json()), code_facts(description)
    same = here["platform"] == other["platform"]
    return same and set(other["features"]) <= set(here["features"])


def difference(key: TaskKey, description: Any, here: Target, version: str) -> str:
    """Why a build on this machine leaves the records with this key, whatever its threads and
    precision are; "" if it takes them."""
    if key.compiler_version != version:
        return f"of compiler version {key.compiler_version} (this is {version})"
    if key.target != here.key:
        return f"for {target_text(key.target, description, here)}"
    return ""
