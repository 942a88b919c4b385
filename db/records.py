"""What goes into a store and comes out of it: plain values, no database objects."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args

from db.bounds import (
    Count,
    Hash,
    Json,
    JsonObject,
    Latency,
    Moment,
    Name,
    Prose,
    ScheduleHash,
    Seconds,
    Share,
    TargetKey,
    Word,
    WorkloadKey,
    one_of,
)

JobState: TypeAlias = Literal["running", "finished", "interrupted", "failed", "lost"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
OK = "ok"
"""The status of a trial that was built, gave the right result and was timed."""
CONFIRMED = "confirmed"
"""Key in a trial's conditions: it is a finalist's, measured beside the others by the job named."""


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

    workload: WorkloadKey
    target: TargetKey
    threads: Count
    numerics: Word
    compiler_version: Hash


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A distinct fused kernel. `kernel` is its canonical JSON value, enough to rebuild it."""

    key: WorkloadKey
    name: Name
    kernel: Json


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A processor that was compiled for; `description` is the target's JSON value."""

    key: TargetKey
    description: Json


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One measured candidate.

    `request_id` tells measurements of one schedule apart: a trial whose key, schedule and request
    are in the store already is not recorded again. `latency` is the median of `samples` in
    seconds, None unless there is one. `machine` is what stays the same from trial to trial on one
    machine (its fingerprint) and is stored once; `conditions` is what does not (load, steal).
    `job` is the id of a JobRecord or None, `created` seconds since the epoch; the store sets
    it when it is 0. `number` is the record's id within its database, None before it is stored.
    """

    key: TaskKey
    request_id: Hash
    sketch: Name
    choices: JsonObject
    schedule: Json
    status: Word
    latency: Latency | None = None
    samples: tuple[Seconds, ...] = ()
    error: Prose = ""
    build_seconds: Seconds = 0.0
    check_seconds: Seconds = 0.0
    run_seconds: Seconds = 0.0
    machine: JsonObject = field(default_factory=dict)
    conditions: JsonObject = field(default_factory=dict)
    job: Word | None = None
    created: Moment = 0.0
    number: int | None = None

    @property
    def schedule_hash(self) -> str:
        """`hash_json` of the schedule."""
        return hash_json(self.schedule)

    @property
    def is_ok(self) -> bool:
        """Whether the trial may be applied: the right result and a finite latency above zero."""
        return self.status == OK and self.latency is not None and 0 < self.latency < math.inf


@dataclass(frozen=True, slots=True)
class BestRecord:
    """The schedule that a job settled for a task: one of its trials, by hash and request.

    `ratio` is its time over that of the default schedule in paired runs, `low` and `high` bound it
    with 95 % confidence; `default_latency` is the default's, in seconds. `met` are the hashes of
    all schedules that were compared.
    """

    key: TaskKey
    schedule_hash: ScheduleHash
    request_id: Hash
    default_latency: Latency
    ratio: Seconds
    low: Seconds
    high: Seconds
    met: tuple[ScheduleHash, ...]
    job: Word
    created: Moment = 0.0


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """A model that was built: `artefact_sha256` is the file's, `report` a JSON value.

    `id` is unique over all databases; `created` is in seconds since the epoch.
    """

    id: Word
    model_name: Prose
    model_hash: Hash
    target: TargetKey
    threads: Count
    numerics: Word
    compiler_version: Hash
    artefact_sha256: Hash
    tuned_share: Share
    report: JsonObject
    created: Moment


@dataclass(frozen=True, slots=True)
class JobTask:
    """One distinct kernel of a job's model and how often it occurs there."""

    key: TaskKey
    occurrences: Count


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One run of the tuner on one model.

    `id` is unique over all databases. `settings` and `progress` are JSON values. Times are
    seconds since the epoch; `finished` is None while the state is running, and for a job that is
    lost (its process is gone) until another one notices.
    """

    id: Word
    model_name: Prose
    model_hash: Hash
    settings: Json
    state: Annotated[JobState, one_of(JOB_STATES, "state of a job")]
    started: Moment
    updated: Moment
    finished: Moment | None
    progress: Json
    tasks: tuple[JobTask, ...] = ()


Record: TypeAlias = (
    TargetRecord | WorkloadRecord | JobRecord | TrialRecord | BestRecord | BuildRecord
)
