"""What a LatencyRecord says of a whole model on a machine, as values, and how it is read back.

    a job      what is applied from now on against the untuned model
    tune bench the built model next to other engines
    tune verify whether a recorded latency still holds

Records may be other people's. What does not read as a latency is left out, never an error.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from tunefarm import compiler
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.db import model_queries
from tunefarm.db.records import LatencyPurpose, LatencyRecord, TargetRecord
from tunefarm.db.store import Store
from tunefarm.measure.unchanged import is_unchanged
from tunefarm.tuner.records.model_graphs import ModelGraphs

_Read = TypeVar("_Read")

FORM = 1
"""Of the JSON; another one is not read."""
MOST_ITEMS = 100_000
MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time over that of something else, bounded by `low` and `high` with 95 % confidence."""

    ratio: float
    low: float
    high: float

    @property
    def is_unchanged(self) -> bool:
        """Both are one build."""
        return is_unchanged(self.low, self.high)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One step of a model, in order: the kernel's name, its workload key ("" of a copy of memory),
    its median seconds (None if it was not profiled) and the numbers of the steps it reads from."""

    name: str
    key: str
    seconds: float | None
    reads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AppliedKernel:
    """How a distinct kernel was built into the model.

    `source` is as in a KernelReport, `schedule` the hash of the recorded schedule that it has (""
    of one without a record), `latency` that record's, in seconds, and `flops` those of one call.
    """

    name: str
    occurrences: int
    source: str
    schedule: str
    latency: float | None
    flops: int


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Another engine next to ours: seconds per run and `over_ours`, its time over ours.

    `sizes` are those it was measured at ("" where they are fixed). `error` is its largest error
    against f32 over the largest output, `top1` as `tune bench` has it, None where unknown. Outputs
    that are `wrong` are not the model's: the time counts for nothing.
    """

    engine: str
    numerics: str
    seconds: float
    over_ours: Ratio
    sizes: str = ""
    error: float | None = None
    top1: float | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class MachineRoof:
    """What the machine could do at most with the model's threads: f32 operations a second, and
    bytes of memory read and written a second."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """How long a whole model takes, in seconds per run.

    `tuned` is the model as it is applied from now on, `spread` its relative deviation. `untuned`
    and `over_untuned` are there if the untuned model met it, in the same pairs. `refused` is what
    newer schedules took over the untuned ones where they lost and were not kept. `claimed` and
    `confirmed` are the sums over all kernels of what a search expected and what its finalists came
    to. `sizes` are those of the symbols of a model whose sizes are open. `kernels` are by workload
    key; `llvm` is the version of LLVM that made the code. `graphs` say how the steps' results lie.
    """

    tuned: float
    llvm: str
    spread: float = 0.0
    untuned: float | None = None
    over_untuned: Ratio | None = None
    refused: Ratio | None = None
    claimed: float | None = None
    confirmed: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[ModelStep, ...] = ()
    kernels: Mapping[str, AppliedKernel] = field(default_factory=dict)
    engines: tuple[EngineTime, ...] = ()
    roof: MachineRoof | None = None
    graphs: ModelGraphs | None = None

    def to_json(self) -> dict[str, Any]:
        """The times as a JSON value."""
        steps = [[step.name, step.key, step.seconds, list(step.reads)] for step in self.steps]
        return {
            "form": FORM,
            "tuned": self.tuned,
            "llvm": self.llvm,
            "spread": self.spread,
            "untuned": self.untuned,
            "over_untuned": None if self.over_untuned is None else asdict(self.over_untuned),
            "refused": None if self.refused is None else asdict(self.refused),
            "claimed": self.claimed,
            "confirmed": self.confirmed,
            "sizes": dict(self.sizes),
            "steps": steps,
            "kernels": {key: asdict(kernel) for key, kernel in self.kernels.items()},
            "engines": [asdict(engine) for engine in self.engines],
            "roof": None if self.roof is None else asdict(self.roof),
            "graphs": None if self.graphs is None else self.graphs.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelTimes:
        """The inverse of `to_json`. Raises ValueError on any other JSON."""
        try:
            return _times(data)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"no latency of a model: {type(error).__name__}") from error


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


def _times(data: Mapping[str, Any]) -> ModelTimes:
    if data["form"] != FORM:
        raise ValueError(f"a form {data['form']!r} of latencies is not known")
    steps = tuple(_step(number, item) for number, item in enumerate(_list(data["steps"])))
    return ModelTimes(
        tuned=_positive(data["tuned"]),
        llvm=_text(data["llvm"]),
        spread=_number(data["spread"]),
        untuned=_optional(_positive, data["untuned"]),
        over_untuned=_optional(_ratio, data["over_untuned"]),
        refused=_optional(_ratio, data["refused"]),
        claimed=_optional(_positive, data["claimed"]),
        confirmed=_optional(_positive, data["confirmed"]),
        sizes={_text(name): _count(size) for name, size in data["sizes"].items()},
        steps=steps,
        kernels={_text(key): _kernel(item) for key, item in data["kernels"].items()},
        engines=tuple(_engine(item) for item in _list(data["engines"])),
        roof=_optional(_roof, data.get("roof")),  # which the first records have not
        graphs=_optional(ModelGraphs.from_json, data.get("graphs")),  # nor these
    )


def _step(number: int, item: Any) -> ModelStep:
    name, key, seconds, reads = item
    numbers = tuple(_count(read) for read in _list(reads))
    if any(read >= number for read in numbers):
        raise ValueError(f"step {number} reads what is not written yet")
    return ModelStep(_text(name), _text(key), _optional(_number, seconds), numbers)


def _kernel(item: Mapping[str, Any]) -> AppliedKernel:
    return AppliedKernel(
        _text(item["name"]),
        _count(item["occurrences"]),
        _text(item["source"]),
        _text(item["schedule"]),
        _optional(_positive, item["latency"]),
        _count(item["flops"]),
    )


def _engine(item: Mapping[str, Any]) -> EngineTime:
    return EngineTime(
        _text(item["engine"]),
        _text(item["numerics"]),
        _positive(item["seconds"]),
        _ratio(item["over_ours"]),
        _text(item["sizes"]),
        _optional(_number, item["error"]),
        _optional(_number, item["top1"]),
        item["wrong"] is True,
    )


def _roof(item: Mapping[str, Any]) -> MachineRoof:
    return MachineRoof(_positive(item["flops"]), _positive(item["bytes"]))


def _ratio(item: Mapping[str, Any]) -> Ratio:
    ratio, low, high = (_positive(item[name]) for name in ("ratio", "low", "high"))
    if not low <= ratio <= high:
        raise ValueError(f"the ratio {ratio:g} is not from {low:g} to {high:g}")
    return Ratio(ratio, low, high)


def _optional(read: Callable[[Any], _Read], value: Any) -> _Read | None:
    return None if value is None else read(value)


def _number(value: Any) -> float:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{type(value).__name__} is no number")
    number = float(value)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{number} is out of range")
    return number


def _positive(value: Any) -> float:
    number = _number(value)
    if number == 0.0:
        raise ValueError("0 is out of range")
    return number


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise ValueError("no text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise ValueError("no list")
    return value
