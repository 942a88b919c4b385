"""What a LatencyRecord says of a whole model on a machine, as values, and how it is read back.

    a job      what is applied from now on against the untuned model
    tune bench the built model next to other engines
    tune verify whether a recorded latency still holds

Records may be other people's. What does not read as a latency is left out, never an error.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tunefarm import compiler
from tunefarm.compiler.target import Target
from tunefarm.configs.json_values import (
    Count,
    Number,
    Positive,
    from_json,
    named_rows,
    to_json,
)
from tunefarm.configs.settings import Settings
from tunefarm.db import model_queries
from tunefarm.db.records import LatencyPurpose, LatencyRecord, TargetRecord
from tunefarm.db.store import Store
from tunefarm.measure.measurement import is_unchanged

FORM = 1
"""Of the JSON; another one is not read."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time over that of something else, bounded by `low` and `high` with 95 % confidence."""

    ratio: Positive
    low: Positive
    high: Positive

    @property
    def is_unchanged(self) -> bool:
        """Both are one build."""
        return is_unchanged(self.low, self.high)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One step of a model, in order: the kernel's name, its workload key ("" of a copy of memory)
    and its median seconds (None if it was not profiled)."""

    name: str
    key: str
    seconds: Number | None


@dataclass(frozen=True, slots=True)
class AppliedKernel:
    """How a distinct kernel was built into the model.

    `source` is as in a KernelReport, `schedule` the hash of the recorded schedule that it has (""
    of one without a record), `latency` that record's, in seconds, and `flops` those of one call.
    """

    name: str
    occurrences: Count
    source: str
    schedule: str
    latency: Positive | None
    flops: Count


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Another engine next to ours: seconds per run and `over_ours`, its time over ours.

    `sizes` are those it was measured at ("" where they are fixed). `error` is its largest error
    against f32 over the largest output, `top1` as `tune bench` has it, None where unknown. Outputs
    that are `wrong` are not the model's: the time counts for nothing.
    """

    engine: str
    numerics: str
    seconds: Positive
    over_ours: Ratio
    sizes: str = ""
    error: Number | None = None
    top1: Number | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class MachineRoof:
    """What the machine could do at most with the model's threads: f32 operations a second, and
    bytes of memory read and written a second."""

    flops: Positive
    bytes: Positive


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """How long a whole model takes, in seconds per run.

    `tuned` is the model as it is applied from now on, `spread` its relative deviation. `untuned`
    and `over_untuned` are there if the untuned model met it, in the same pairs. `refused` is what
    newer schedules took over the untuned ones where they lost and were not kept. `claimed` and
    `confirmed` are the sums over all kernels of what a search expected and what its finalists came
    to. `sizes` are those of the symbols of a model whose sizes are open. `kernels` are by workload
    key; `llvm` is the version of LLVM that made the code.
    """

    tuned: Positive
    llvm: str
    spread: Number = 0.0
    untuned: Positive | None = None
    over_untuned: Ratio | None = None
    refused: Ratio | None = None
    claimed: Positive | None = None
    confirmed: Positive | None = None
    sizes: Mapping[str, Count] = field(default_factory=dict)
    steps: tuple[ModelStep, ...] = ()
    kernels: Mapping[str, AppliedKernel] = field(default_factory=dict)
    engines: tuple[EngineTime, ...] = ()
    roof: MachineRoof | None = None

    def to_json(self) -> dict[str, Any]:
        """The times as a JSON value."""
        steps = [[step.name, step.key, step.seconds] for step in self.steps]
        return {"form": FORM, **to_json(replace(self, steps=())), "steps": steps}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelTimes:
        """The inverse of `to_json`. Raises ValueError on any other JSON."""
        try:
            if data["form"] != FORM:
                raise ValueError(f"a form {data['form']!r} of latencies is not known")
            # Earlier versions added what a step reads, and the graph that the steps are of.
            steps = named_rows(ModelStep, [step[:3] for step in data["steps"]])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no latency of a model: {type(error).__name__}") from error
        found = from_json(ModelTimes, {**data, "steps": steps})
        ratios = (found.over_untuned, found.refused, *(e.over_ours for e in found.engines))
        for ratio in ratios:
            if ratio is not None and not ratio.low <= ratio.ratio <= ratio.high:
                raise ValueError(f"{ratio} is not within its interval")
        return found


class MeasuredModel(NamedTuple):
    """A record, and what it says."""

    record: LatencyRecord
    times: ModelTimes


@dataclass(frozen=True, slots=True)
class Conditions:
    """What latencies of a model are compared within; `target` is as in a TargetRecord."""

    model_hash: str
    target: TargetRecord
    threads: int
    numerics: str
    compiler_version: str

    @staticmethod
    def of(settings: Settings, model_hash: str, target: Target) -> Conditions:
        """Those of a model that this version of the compiler builds under these settings."""
        return Conditions(
            model_hash,
            TargetRecord(target.key, target.to_json()),
            settings.compile.threads,
            settings.compile.numerics,
            compiler.VERSION,
        )


def record_latency(
    store: Store,
    times: ModelTimes,
    model_name: str,
    conditions: Conditions,
    purpose: LatencyPurpose,
    machine: Mapping[str, Any],
    job: str | None = None,
) -> LatencyRecord:
    """Keep how long a model takes; the record. Raises DatabaseError.

    `machine` is the fingerprint of where it was measured (`tunefarm.measure.machine.fingerprint`).
    """
    record = LatencyRecord(
        id=uuid.uuid4().hex,
        model_name=model_name,
        model_hash=conditions.model_hash,
        target=conditions.target.key,
        threads=conditions.threads,
        numerics=conditions.numerics,
        compiler_version=conditions.compiler_version,
        purpose=purpose,
        machine=dict(machine),
        measured=times.to_json(),
        created=time.time(),
        job=job,
    )
    store.add([conditions.target])
    store.add([record])
    return record


def measured_models(
    store: Store,
    *,
    model_hash: str | None = None,
    target: str | None = None,
    threads: int | None = None,
    numerics: str | None = None,
    purpose: LatencyPurpose | None = None,
    machine: str | None = None,
    job: str | None = None,
) -> Iterator[MeasuredModel]:
    """The records of which all that is given is true and that can be read, the newest first.

    `machine` is the fingerprint's text, `job` the id of a job. Raises DatabaseError for a damaged
    database.
    """
    wanted = {
        "model_hash": model_hash,
        "target": target,
        "threads": threads,
        "numerics": numerics,
        "purpose": purpose,
        "job": job,
    }
    for record in model_queries.latencies(store):
        if any(v is not None and getattr(record, name) != v for name, v in wanted.items()):
            continue
        if machine is not None and record.machine.get("fingerprint") != machine:
            continue
        try:
            yield MeasuredModel(record, ModelTimes.from_json(record.measured))
        except ValueError:
            continue


def newest(store: Store, **wanted: Any) -> MeasuredModel | None:
    """The first of `measured_models`; None if there is none."""
    return next(measured_models(store, **wanted), None)
