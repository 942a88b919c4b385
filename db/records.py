"""What goes into a store and comes out of it: plain values, no database objects."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:  # `read_record` knows it when it needs it; a build never does
    from tunefarm.db import bounds

JobState: TypeAlias = Literal["running", "finished", "interrupted", "failed", "lost"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
EntryState: TypeAlias = Literal["waiting", "running", "finished", "failed"]
ENTRY_STATES: tuple[EntryState, ...] = get_args(EntryState)
LatencyPurpose: TypeAlias = Literal["job", "bench", "verify"]
LATENCY_PURPOSES: tuple[LatencyPurpose, ...] = get_args(LatencyPurpose)
OK = "ok"
"""The status of a trial that was built, gave the right result and was timed."""
LOST_TO_NOISE = ("scattered", "unstable")
"""The statuses of trials that gave the right result and say too little about speed."""
CONFIRMED = "confirmed"
"""Key in a trial's conditions: it is a finalist's, measured with the others by the job named."""


def compact_json(value: object) -> str:
    """The value as short ASCII JSON text; finite numbers only (else ValueError)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object) -> str:
    """The value as JSON text: sorted keys, no spaces, finite numbers only (else ValueError)."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def hash_json(value: object) -> str:
    """16 hex characters of the SHA-256 of the canonical JSON; tuples count as lists."""
    text = canonical_json(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TaskKey:
    """What a schedule was tuned for; records compare only within one key.

    `workload` and `target` are keys of a WorkloadRecord and a TargetRecord.
    """

    workload: bounds.WorkloadKey
    target: bounds.TargetKey
    threads: bounds.Count
    numerics: bounds.Word
    compiler_version: bounds.Hash


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A distinct fused kernel. `kernel` is its canonical JSON value, enough to rebuild it."""

    key: bounds.WorkloadKey
    name: bounds.Name
    kernel: bounds.Json


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A processor that was compiled for; `description` is the target's JSON value."""

    key: bounds.TargetKey
    description: bounds.Json


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One measured candidate.

    `request_id` tells measurements of one schedule apart: a trial whose key, schedule and request
    are in the store already is not recorded again. `latency` is in seconds, None unless there is
    one, `samples` are slices, in order. `machine` is what stays the same from trial to trial on one
    machine (its fingerprint) and is stored once; `conditions` is what does not (load, steal).
    `job` is the id of a JobRecord or None, `created` seconds since the epoch; the store sets
    it when it is 0. `number` is the record's id within its database, None before it is stored.

    A schedule that was measured in pairs has the hash of another schedule of its task as
    `reference`, that one's slices (the i-th next to the i-th of `samples`), and its time over the
    reference's as `ratio`, which `low` and `high` bound with 95 % confidence. Its latency is then
    the ratio times the reference's latency in the task's scale: what the default schedule took
    when the database first saw it. What was measured alone has none of these, and its latency is
    the median of the samples.
    """

    key: TaskKey
    request_id: bounds.Hash
    sketch: bounds.Name
    choices: bounds.JsonObject
    schedule: bounds.Json
    status: bounds.Word
    latency: bounds.Latency | None = None
    samples: tuple[bounds.Seconds, ...] = ()
    error: bounds.Prose = ""
    build_seconds: bounds.Seconds = 0.0
    check_seconds: bounds.Seconds = 0.0
    run_seconds: bounds.Seconds = 0.0
    machine: bounds.JsonObject = field(default_factory=dict)
    conditions: bounds.JsonObject = field(default_factory=dict)
    job: bounds.Word | None = None
    created: bounds.Moment = 0.0
    reference: bounds.ScheduleHash | None = None
    ratio: bounds.Ratio | None = None
    low: bounds.Ratio | None = None
    high: bounds.Ratio | None = None
    reference_samples: tuple[bounds.Seconds, ...] = ()
    number: int | None = None

    @property
    def schedule_hash(self) -> str:
        """`hash_json` of the schedule."""
        return hash_json(self.schedule)

    @property
    def is_ok(self) -> bool:
        """Whether the trial may be applied: the right result and a finite latency above zero."""
        return self.status == OK and self.latency is not None and 0 < self.latency < math.inf

    @property
    def is_lost_to_noise(self) -> bool:
        """Whether the result was right, and its time told nothing."""
        return self.status in LOST_TO_NOISE

    @property
    def contradiction(self) -> str:
        """Why its fields, each right by itself, cannot be together; "" if they can."""
        return contradiction({name: getattr(self, name) for name in _RELATED})


_PAIR = ("reference", "ratio", "low", "high", "reference_samples")
_RELATED = ("status", "latency", "samples", *_PAIR)


def contradiction(trial: Mapping[str, Any]) -> str:
    """The same of a trial's fields by name."""
    latency, ratio, low, high = (trial[name] for name in ("latency", "ratio", "low", "high"))
    if trial["status"] == OK and not (latency is not None and 0 < latency < math.inf):
        return "ok without a latency above zero"
    slices = trial["reference_samples"] or ()
    pair = (trial["reference"], ratio, low, high)
    if None in pair:
        whole = pair.count(None) == len(pair) and not slices
        return "" if whole else "a part of what it was measured against is missing"
    if not 0 < low <= ratio <= high < math.inf:
        return f"the ratio {ratio:g} is not from {low:g} to {high:g}"
    if len(slices) != len(trial["samples"]):
        return "it has other numbers of slices than its reference"
    return ""


@dataclass(frozen=True, slots=True)
class BestRecord:
    """The schedule that a job settled for a task: one of its trials, by hash and request. `job` is
    None where a check of records from elsewhere has settled it.

    `ratio` is its time over that of the default schedule in paired runs, `low` and `high` bound it
    with 95 % confidence; `default_latency` is the default's, in seconds. `met` are the hashes of
    all schedules that were compared.
    """

    key: TaskKey
    schedule_hash: bounds.ScheduleHash
    request_id: bounds.Hash
    default_latency: bounds.Latency
    ratio: bounds.Ratio
    low: bounds.Ratio
    high: bounds.Ratio
    met: tuple[bounds.ScheduleHash, ...]
    job: bounds.Word | None
    created: bounds.Moment = 0.0


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A model that was built: `artefact_sha256` is the file's, `report` a JSON value.

    `id` is unique over all databases; `created` is in seconds since the epoch.
    """

    id: bounds.Word
    model_name: bounds.Prose
    model_hash: bounds.Hash
    target: bounds.TargetKey
    threads: bounds.Count
    numerics: bounds.Word
    compiler_version: bounds.Hash
    artefact_sha256: bounds.Hash
    tuned_share: bounds.Share
    report: bounds.JsonObject
    created: bounds.Moment


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """What was chosen for a model as a whole, a JSON value, for this precision.

    `id` is unique over all databases; `created` is in seconds since the epoch. `cpu` is the one
    that it was measured on, None where nothing was, or an earlier version wrote it.
    """

    id: bounds.Word
    model_name: bounds.Prose
    model_hash: bounds.Hash
    target: bounds.TargetKey
    threads: bounds.Count
    numerics: bounds.Word
    compiler_version: bounds.Hash
    plan: bounds.JsonObject
    created: bounds.Moment
    cpu: bounds.Name | None = None


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """How long a whole model takes on a machine, as a JSON value whose form `tuner` knows.

    A job measures it at its end, `tune bench` against other engines, `tune verify` to see whether
    it still holds. `machine` is a fingerprint as in TrialRecord, `job` the id of a JobRecord or
    None. `id` is unique over all databases; `created` is in seconds since the epoch.
    """

    id: bounds.Word
    model_name: bounds.Prose
    model_hash: bounds.Hash
    target: bounds.TargetKey
    threads: bounds.Count
    numerics: bounds.Word
    compiler_version: bounds.Hash
    purpose: Annotated[LatencyPurpose, bounds.one_of(LATENCY_PURPOSES, "purpose")]
    machine: bounds.JsonObject
    measured: bounds.JsonObject
    created: bounds.Moment
    job: bounds.Word | None = None


@dataclass(frozen=True, slots=True)
class JobTask:
    """One distinct kernel of a job's model and how often it occurs there."""

    key: TaskKey
    occurrences: bounds.Count


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One run of the tuner on one model.

    `id` is unique over all databases. `settings` and `progress` are JSON values. Times are
    seconds since the epoch; `finished` is None while the state is running, and for a job that is
    lost (its process is gone) until another one notices.
    """

    id: bounds.Word
    model_name: bounds.Prose
    model_hash: bounds.Hash
    settings: bounds.Json
    state: Annotated[JobState, bounds.one_of(JOB_STATES, "state of a job")]
    started: bounds.Moment
    updated: bounds.Moment
    finished: bounds.Moment | None
    progress: bounds.Json
    tasks: tuple[JobTask, ...] = ()


Record: TypeAlias = (
    TargetRecord
    | WorkloadRecord
    | JobRecord
    | TrialRecord
    | BestRecord
    | BuildRecord
    | PlanRecord
    | LatencyRecord
)
