"""The tables, as SQLAlchemy models. `tunefarm.db.migrations` makes exactly these.

workloads ─┐
           ├─ tasks (the key of a record) ─┬─ trials ─ machines
targets  ──┘                               ├─ bests (each one of the trials)
                                           ├─ job_tasks ─ jobs
                               └─ claims ─ jobs ─ leases, requests
targets ── builds, plans, latencies ─ jobs, machines
queue_entries
additions: what an import, a merge or a pack brought has its number in `addition_id`

Every row has a checksum, so that a damaged one is recognised (`tunefarm.db.checksum`).
"""

from __future__ import annotations

import json
import zlib
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, QueryContext, mapped_column
from sqlalchemy.types import TypeDecorator

from tunefarm.configs.errors import DatabaseError
from tunefarm.db.checksum import checksum_of, checksum_of_insert, damaged_row
from tunefarm.db.records import OK, EntryState, JobState, LatencyPurpose, compact_json

# Packed JSON: long, repetitive JSON values as compressed bytes.

_FORMAT = b"\x01"
_MOST_BYTES = 64 << 20  # of a value that is unpacked; a damaged one could become endless
_RAW = -15  # no header, no trailing sum: every row has a checksum of its own

# Frequent strings, the most frequent last, where deflate refers to them with the fewest bits.
_DICTIONARY = (
    b'["Pad","Flatten","Split","Fuse","Parallel","grain","Prefetch","CacheWrite","workspace",'
    b'"stack","Winograd","Turn","Window","transform","inverse","scale","shift","max","sum","exp",'
    b'"softmax","matmul","gelu","add","out","residual","block","row","column","in0","in2","in3",'
    b'"involuntary_switches":0,"queued_seconds":0.0,"load":1.0,"calls":12,"retaken":0,"tainted":0,'
    b'"constant_copies":16,"anchor_seconds":1.9,"anchor_drift":-0.0,"relative_mad":0.00,'
    b'"censored":true,"confirmed":"],'
    b'{"threads":1,"threading":"","nice":0,"steal_seconds":0.0,"involuntary_switches":'
    b',"queued_seconds":0.0001,"load":2.0,"calls":3,"retaken":0,"tainted":0,"constant_copies":'
    b'16,"anchor_seconds":1.92,"anchor_drift":0.0,"relative_mad":0.0'
    b'[["Inline","pad"],["PackLayout","in1",[[0,8]],[0,3,4,2,1]],["PackLayout","in1",[[1,8]],'
    b'["Tile","bias","ocb",2,"shift"],["Tile","relu","ow",4,"shift"],["Reorder","bias",["n","oh",'
    b'"ocb.o","ow.o","ow.i","ocb.i","oci"]],["Unroll","relu","ow.i"],["Unroll","relu","ocb.i"],'
    b'["Vectorize","relu","oci"],["Partition","relu","ow.o"],["Fuse","relu","n","oh"],'
    b'["Parallel","relu","oh"],["ComputeAt","conv","relu","ow.o","register"],'
    b'["Tile","conv","ici",8],["Reorder","conv",["n","oh","icb","kh","kw","ici.o","ici.i","ow",'
    b'"ocb","oci"]],["Unroll","conv","ici.i",false],["Unroll","conv","ow"],'
    b'["Unroll","conv","ocb"],["Vectorize","conv","oci"]]'
)


def pack(text: str) -> bytes:
    """The text as compressed bytes; any Unicode text without lone surrogates."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _RAW, zdict=_DICTIONARY)
    return _FORMAT + packer.compress(text.encode()) + packer.flush()


def unpack(packed: bytes) -> str:
    """The inverse of `pack`. Raises DatabaseError for bytes that it did not make."""
    if not isinstance(packed, bytes) or packed[:1] != _FORMAT:
        raise DatabaseError("a packed value has an unknown format")
    unpacker = zlib.decompressobj(_RAW, zdict=_DICTIONARY)
    try:
        text = unpacker.decompress(packed[1:], _MOST_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            raise DatabaseError("a packed value is cut off or too long")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise DatabaseError(f"a packed value is damaged: {error}") from error


REVISION = "0009"
"""The Alembic revision that these models are."""


WITH_CHECKSUMS = ("0003", "0004", "0005", "0006", "0007", "0008", REVISION)
"""The revisions whose tables, if there, have the columns of these models, but for those that stand
behind the checksum (`tunefarm.db.checksum.added_columns`)."""


_ADDED = 1001
"""`sort_order` of columns that were added to tables with a checksum: behind it, as in the files."""

_TASK_KEY = ("workload_id", "target_id", "threads", "numerics", "compiler_version")
"""The columns of a task's key."""


class Json(TypeDecorator[Any]):
    """A JSON value as compact text; NaN and infinities are refused."""

    impl = Text
    cache_ok = True
    should_evaluate_none = True  # None is the JSON value null

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """What goes to the database."""
        return compact_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """What comes from it."""
        return None if value is None else _parsed(value)


class PackedJson(TypeDecorator[Any]):
    """A JSON value, compressed (`tunefarm.db.schema`); NaN and infinities are refused.

    In SQLite the column is declared as text, as it was when it held text, and holds a blob.
    """

    impl = LargeBinary().with_variant(Text(), "sqlite")
    cache_ok = True
    should_evaluate_none = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:
        """What goes to the database."""
        return pack(compact_json(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """What comes from it."""
        return None if value is None else _parsed(unpack(value))


class PackedNumbers(TypeDecorator[Any]):
    """A list of numbers, compressed; null if there are none, as in rows from before."""

    impl = LargeBinary().with_variant(Text(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        """What goes to the database."""
        return pack(compact_json(value)) if value else None

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """What comes from it."""
        return None if value is None else _parsed(unpack(value))


PACKED = (PackedJson, PackedNumbers)
"""The types whose values are compressed."""


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise DatabaseError(
            "a record is damaged: it holds invalid JSON", hint="tune db check shows which"
        ) from error


class Base(DeclarativeBase):
    """Base of the models; names of constraints are fixed so that migrations can name them."""

    checksum: Mapped[int | None] = mapped_column(
        BigInteger, default=checksum_of_insert, sort_order=1000
    )

    type_annotation_map: ClassVar = {float: Float(), str: Text()}
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def where(condition: str) -> dict[str, Any]:
    """The options of an index of those rows alone."""
    return {f"{dialect}_where": text(condition) for dialect in ("sqlite", "postgresql")}


@event.listens_for(Base, "load", propagate=True)
def _refuse_damaged(row: Base, _context: QueryContext) -> None:
    """Whatever reads a row, a damaged one is never taken for what was written."""
    try:
        intact = row.checksum == checksum_of(row)
    except (TypeError, ValueError, OverflowError, RecursionError):  # values of other types
        intact = False
    if not intact:
        raise damaged_row(f"{row.__tablename__} {getattr(row, 'id', '')}")


@event.listens_for(Base, "before_update", propagate=True)
def _renew_checksum(_mapper: Mapper[Base], _connection: Connection, row: Base) -> None:
    row.checksum = checksum_of(row)


class Numbered(Base):
    """Base of the models whose rows have numbers."""

    __abstract__ = True

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class Brought(Numbered):
    """Base of the models whose rows may come from elsewhere: `addition_id` is then the number of
    the addition, null for what this database's own jobs wrote.

    No foreign key: SQLite gives none to a table that is there.
    """

    __abstract__ = True

    addition_id: Mapped[int | None] = mapped_column(sort_order=_ADDED + 1)


class Addition(Numbered):
    """An import, a merge or a pack that was added; `finished` is null while it is under way."""

    __tablename__ = "additions"

    kind: Mapped[str] = mapped_column(String(16))
    source: Mapped[str]
    started: Mapped[float]
    finished: Mapped[float | None]


class Target(Numbered):
    """A processor that was compiled for."""

    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(String(200), unique=True)
    description: Mapped[Any] = mapped_column(Json)


class Machine(Numbered):
    """A machine that measured; `key` is the hash of its fingerprint."""

    __tablename__ = "machines"

    key: Mapped[str] = mapped_column(String(64), unique=True)
    description: Mapped[Any] = mapped_column(Json)


class Workload(Numbered):
    """A distinct fused kernel."""

    __tablename__ = "workloads"

    key: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str]
    kernel: Mapped[Any] = mapped_column(Json)


class Task(Numbered):
    """The key of a record: a workload on a target with threads, precision and compiler version."""

    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint(*_TASK_KEY, name="uq_tasks_key"),)

    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    threads: Mapped[int]
    numerics: Mapped[str] = mapped_column(String(32))
    compiler_version: Mapped[str] = mapped_column(String(64))


class Job(Brought):
    """One run of the tuner on one model."""

    __tablename__ = "jobs"

    uid: Mapped[str] = mapped_column(String(32), unique=True)
    model_name: Mapped[str]
    model_hash: Mapped[str] = mapped_column(String(64), index=True)
    settings: Mapped[Any] = mapped_column(Json)
    state: Mapped[JobState] = mapped_column(String(16))
    started: Mapped[float]
    updated: Mapped[float]
    finished: Mapped[float | None]
    progress: Mapped[Any] = mapped_column(Json)


class JobTask(Base):
    """A task of a job, in the model's order, and how often the kernel occurs in the model."""

    __tablename__ = "job_tasks"

    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"), primary_key=True, index=True)
    position: Mapped[int]
    occurrences: Mapped[int]


class Lease(Numbered):
    """The process that is at work on a running job, and when it was last seen."""

    __tablename__ = "leases"

    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    host: Mapped[str]
    pid: Mapped[int]
    process_started: Mapped[int] = mapped_column(BigInteger)
    seen: Mapped[float]


class Request(Numbered):
    """What somebody asks of the process that is at work on a job."""

    __tablename__ = "requests"

    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    what: Mapped[str] = mapped_column(String(16))
    asked_by: Mapped[str]
    created: Mapped[float]


class Claim(Numbered):
    """A candidate that a job is about to measure; nobody else does until it `expires`."""

    __tablename__ = "claims"
    __table_args__ = (UniqueConstraint("task_id", "schedule_hash", name="uq_claims_key"),)

    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"))
    schedule_hash: Mapped[str] = mapped_column(String(16))
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    expires: Mapped[float]


class Trial(Brought):
    """One measured candidate. The unique index also answers "which schedules are measured"."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("task_id", "schedule_hash", "request_id", name="uq_trials_key"),
        Index("ix_trials_best", "task_id", "latency", **where(f"status = '{OK}'")),
        Index("ix_trials_confirmed", "task_id", **where("confirmed = 1")),
    )

    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"))
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    machine_id: Mapped[int] = mapped_column(ForeignKey("machines.id"))
    request_id: Mapped[str] = mapped_column(String(64))
    sketch: Mapped[str]
    choices: Mapped[Any] = mapped_column(Json)
    schedule: Mapped[Any] = mapped_column(PackedJson)
    schedule_hash: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(32))
    latency: Mapped[float | None]
    samples: Mapped[Any] = mapped_column(Json)
    error: Mapped[str]
    build_seconds: Mapped[float]
    check_seconds: Mapped[float]
    run_seconds: Mapped[float]
    conditions: Mapped[Any] = mapped_column(PackedJson)
    created: Mapped[float]
    confirmed: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    reference: Mapped[str | None] = mapped_column(String(16), sort_order=_ADDED)
    ratio: Mapped[float | None] = mapped_column(sort_order=_ADDED)
    low: Mapped[float | None] = mapped_column(sort_order=_ADDED)
    high: Mapped[float | None] = mapped_column(sort_order=_ADDED)
    reference_samples: Mapped[Any | None] = mapped_column(PackedNumbers, sort_order=_ADDED)


class Best(Brought):
    """What a job, or a check (no job), settled for a task: the trial to apply. The newest row of a
    task counts."""

    __tablename__ = "bests"
    __table_args__ = (UniqueConstraint("task_id", "job_id", "trial_id", name="uq_bests_key"),)

    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"))
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), index=True)
    default_latency: Mapped[float]
    ratio: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    met: Mapped[Any] = mapped_column(Json)
    created: Mapped[float]


class Build(Brought):
    """A model that was built from the records: which file came out, and what it runs."""

    __tablename__ = "builds"

    uid: Mapped[str] = mapped_column(String(32), unique=True)
    model_name: Mapped[str]
    model_hash: Mapped[str] = mapped_column(String(64), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    threads: Mapped[int]
    numerics: Mapped[str] = mapped_column(String(32))
    compiler_version: Mapped[str] = mapped_column(String(64))
    artefact_sha256: Mapped[str] = mapped_column(String(64))
    tuned_share: Mapped[float]
    report: Mapped[Any] = mapped_column(PackedJson)
    created: Mapped[float]


class Plan(Brought):
    """What was chosen for a model as a whole. The newest row of a model counts."""

    __tablename__ = "plans"

    uid: Mapped[str] = mapped_column(String(32), unique=True)
    model_name: Mapped[str]
    model_hash: Mapped[str] = mapped_column(String(64), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    threads: Mapped[int]
    numerics: Mapped[str] = mapped_column(String(32))
    compiler_version: Mapped[str] = mapped_column(String(64))
    plan: Mapped[Any] = mapped_column(PackedJson)
    created: Mapped[float]
    cpu: Mapped[str | None] = mapped_column(sort_order=_ADDED)


class Latency(Brought):
    """How long a whole model takes, as a job, a comparison or a check has measured it."""

    __tablename__ = "latencies"

    uid: Mapped[str] = mapped_column(String(32), unique=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    model_name: Mapped[str]
    model_hash: Mapped[str] = mapped_column(String(64), index=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), index=True)
    machine_id: Mapped[int] = mapped_column(ForeignKey("machines.id"))
    threads: Mapped[int]
    numerics: Mapped[str] = mapped_column(String(32))
    compiler_version: Mapped[str] = mapped_column(String(64))
    purpose: Mapped[LatencyPurpose] = mapped_column(String(16))
    measured: Mapped[Any] = mapped_column(PackedJson)
    created: Mapped[float]


class QueueEntry(Numbered):
    """A job that waits for its turn, is at work, or was; `holder` is the process that runs it."""

    __tablename__ = "queue_entries"

    uid: Mapped[str] = mapped_column(String(32), unique=True)
    model_name: Mapped[str]
    arguments: Mapped[Any] = mapped_column(Json)
    folder: Mapped[str]
    options: Mapped[Any] = mapped_column(Json)
    state: Mapped[EntryState] = mapped_column(String(16))
    holder: Mapped[Any] = mapped_column(Json)
    job: Mapped[str] = mapped_column(String(32))
    attempts: Mapped[int]
    seconds: Mapped[float]
    error: Mapped[str]
    created: Mapped[float]
    updated: Mapped[float]
