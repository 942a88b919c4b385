"""Recorded searches: whole (thinned) spaces of a few kernels, every schedule of them measured.

`tests/data/recorded.npz` is made by `python -m tests.benchmarks.recording`. A strategy that is
tried on it needs no hardware and gives the same result each time.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.schedule.space import Candidate, Choice, ChoiceValue, ScheduleSpace, Sketch
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.measure.farm.replay_runner import RecordKey, record_key
from tunefarm.measure.measurement import MeasureResult, Status
from tunefarm.tuner.model.cost_model import Outcome
from tunefarm.tuner.model.history import PastKernel, PastTrial
from tunefarm.tuner.model.lessons import ALONE_DEVIATION, Lesson

FILE = Path(__file__).resolve().parents[1] / "data" / "recorded.npz"
FORMAT = 1
STATUSES = tuple(status.value for status in Status)  # a trial's status is its position here


@dataclass(frozen=True, slots=True)
class RecordedKernel:
    """One kernel with every candidate of its thinned space, in the order of their numbers.

    Candidates with equal schedules share one measurement, and so their `schedules` number.
    """

    name: str
    key: str  # workload key
    kernel: FusedKernel
    target: Target
    space: ScheduleSpace
    schedules: npt.NDArray[np.int32]  # per candidate: which schedule it stands for
    statuses: npt.NDArray[np.uint8]  # per candidate: position in STATUSES
    latencies: npt.NDArray[np.float64]  # per candidate: seconds, infinity for a failure
    censored: npt.NDArray[np.bool_]  # per candidate: given up early, clearly slower than the best
    anchors: npt.NDArray[np.float64]  # per candidate: seconds of the anchor kernel beside it
    deviations: npt.NDArray[np.float64]  # per candidate: of its log-ratio to the default, or NaN
    machine: Mapping[str, Any]

    @property
    def candidates(self) -> list[Candidate]:
        return [self.space.candidate(number) for number in range(self.space.size)]

    @property
    def best(self) -> float:
        """The lowest latency."""
        return float(self.latencies.min())

    def latency(self, candidate: Candidate) -> float:
        """Seconds, infinity for a failure."""
        return float(self.latencies[self.space.number(candidate)])

    def answer(self, number: int) -> tuple[RecordKey, MeasureResult]:
        """What a replay runner answers for the candidate of this number."""
        schedule = self.space.schedule(self.space.candidate(number)).to_json()
        status = Status(STATUSES[self.statuses[number]])
        latency = float(self.latencies[number])
        return record_key(self.key, schedule), MeasureResult(
            "",
            status,
            samples=(latency, latency) if status is Status.OK else (),
            error="" if status is Status.OK else "recorded failure",
            machine={"anchor_seconds": float(self.anchors[number])},
            censored=bool(self.censored[number]),
        )

    def results(self) -> dict[RecordKey, MeasureResult]:
        """What a replay runner answers."""
        return dict(map(self.answer, np.unique(self.schedules, return_index=True)[1].tolist()))


def load(names: Iterable[str] | None = None, path: Path = FILE) -> list[RecordedKernel]:
    """The recorded kernels, or those of the given names, as far as today's spaces have them."""
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(file["header"].tobytes())
        if header["format"] != FORMAT:
            raise ValueError(f"{path} has format {header['format']}, not {FORMAT}")
        wanted = None if names is None else set(names)
        loaded = [
            _load(
                entry,
                header,
                {name: file[key] for name in _COLUMNS if (key := f"{i}.{name}") in file},
            )
            for i, entry in enumerate(header["kernels"])
            if wanted is None or entry["name"] in wanted
        ]
        return [kernel for kernel in loaded if kernel is not None]


_COLUMNS = ("schedules", "statuses", "latencies", "censored", "anchors", "deviations")


def about(path: Path) -> dict[str, Any]:
    """What a file says of itself: when and how it was made, kernels left out."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
    else:
        header = json.loads(gzip.decompress(path.read_bytes()))
    return {name: value for name, value in header.items() if name != "kernels"}


def save(path: Path, kernels: Iterable[RecordedKernel], about: Mapping[str, Any]) -> None:
    """Write the file; `about` says when and with what it was made."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    entries = []
    for i, item in enumerate(kernels):
        entries.append(
            {
                "name": item.name,
                "key": item.key,
                "kernel": kernel_to_json(item.kernel),
                "target": item.target.to_json(),
                "machine": dict(item.machine),
                "sketches": [_sketch_to_json(sketch) for sketch in item.space.sketches],
            }
        )
        arrays[f"{i}.schedules"] = item.schedules.astype(np.int32)
        arrays[f"{i}.statuses"] = item.statuses.astype(np.uint8)
        arrays[f"{i}.latencies"] = item.latencies.astype(np.float32)
        arrays[f"{i}.censored"] = item.censored.astype(np.bool_)
        arrays[f"{i}.anchors"] = item.anchors.astype(np.float32)
        arrays[f"{i}.deviations"] = item.deviations.astype(np.float32)
    header = {"format": FORMAT, **about, "kernels": entries}
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
    np.savez_compressed(path, allow_pickle=False, header=text, **arrays)


def thinned(
    space: ScheduleSpace, domains: Mapping[tuple[str, str], tuple[ChoiceValue, ...]]
) -> ScheduleSpace:
    """The space with only these values of the choices named (sketch, choice), and the default's."""
    sketches = []
    for sketch in space.sketches:
        choices = []
        for choice, preferred in zip(sketch.choices, sketch.default, strict=True):
            allowed = domains.get((sketch.name, choice.name))
            kept = tuple(
                v for v in choice.values if allowed is None or v in allowed or v == preferred
            )
            choices.append(Choice(choice.name, kept))
        sketches.append(sketch.narrowed(choices))
    return ScheduleSpace(sketches)


def _sketch_to_json(sketch: Sketch) -> dict[str, Any]:
    return {
        "name": sketch.name,
        "choices": [[choice.name, list(choice.values)] for choice in sketch.choices],
        "default": list(sketch.default),
    }


def _load(
    entry: Mapping[str, Any], header: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]
) -> RecordedKernel | None:
    kernel = kernel_from_json(entry["kernel"])
    target = Target.from_json(entry["target"])
    whole = schedule_space(kernel, target, 1, header["numerics"])
    sketches, numbers, first = [], [], 0
    for recorded in entry["sketches"]:
        before = [
            Choice(name, tuple(_value(value) for value in values))
            for name, values in recorded["choices"]
        ]
        shape = [len(choice.values) for choice in before]
        table = np.arange(first, first + prod(shape)).reshape(shape)
        first += table.size
        remaining = _remaining(whole, recorded["name"], before)
        if remaining is None:
            continue
        sketch, kept = remaining
        default = tuple(_value(value) for value in recorded["default"])
        still = all(v in c.values for v, c in zip(default, sketch.choices, strict=True))
        sketches.append(replace(sketch, default=default if still else sketch.default))
        numbers.append(table[np.ix_(*kept)].ravel())
    if not sketches:
        return None
    taken = np.concatenate(numbers)
    measured_alone = np.full(len(columns["latencies"]), np.nan)
    deviations = columns.get("deviations", measured_alone)
    return RecordedKernel(
        name=entry["name"],
        key=entry["key"],
        kernel=kernel,
        target=target,
        space=ScheduleSpace(sketches),
        schedules=columns["schedules"][taken],
        statuses=columns["statuses"][taken],
        latencies=columns["latencies"][taken].astype(np.float64),
        censored=columns["censored"][taken],
        anchors=columns["anchors"][taken].astype(np.float64),
        deviations=deviations[taken].astype(np.float64),
        machine=entry["machine"],
    )


def _remaining(
    whole: ScheduleSpace, name: str, before: Sequence[Choice]
) -> tuple[Sketch, list[list[int]]] | None:
    """What today's space still has of a recorded sketch, and the positions of that in what it had.

    None if nothing is left: spaces change, and what was measured of the rest stays of use.
    """
    today = {sketch.name: sketch for sketch in whole.sketches}.get(name)
    if today is None or [c.name for c in today.choices] != [c.name for c in before]:
        return None
    kept = [
        [position for position, value in enumerate(old.values) if value in new.values]
        for old, new in zip(before, today.choices, strict=True)
    ]
    choices = [
        Choice(old.name, tuple(old.values[position] for position in positions))
        for old, positions in zip(before, kept, strict=True)
    ]
    if not all(kept):
        return None
    narrowed = today.narrowed(choices)
    own = tuple(
        preferred if preferred in choice.values else choice.values[0]
        for preferred, choice in zip(today.default, choices, strict=True)
    )
    return replace(narrowed, default=own), kept


def _value(value: Any) -> ChoiceValue:
    return tuple(value) if isinstance(value, list) else value


def past_of(item: RecordedKernel) -> PastKernel:
    """What a job knows that has measured every schedule of a recorded kernel once."""
    trials = []
    for number in np.unique(item.schedules, return_index=True)[1].tolist():
        deviation = float(item.deviations[number])
        lesson = Lesson.of(
            STATUSES[item.statuses[number]],
            float(item.latencies[number]),
            0.0,
            {},
            ALONE_DEVIATION if math.isnan(deviation) else deviation,
        )
        if lesson is not None:
            trials.append(PastTrial(item.space.candidate(number), lesson))
    return PastKernel(item.kernel, item.target, item.space, tuple(trials))


def save_past(path: Path, kernels: Iterable[PastKernel], about: Mapping[str, Any]) -> None:
    """Write what searches have measured of some kernels: parts of their spaces."""
    entries = [
        {
            "kernel": kernel_to_json(item.kernel),
            "target": item.target.to_json(),
            "trials": [_trial_to_json(item.space, trial) for trial in item.trials],
        }
        for item in kernels
    ]
    text = json.dumps({"format": FORMAT, **about, "kernels": entries}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load_past(path: Path) -> list[PastKernel]:
    """What `save_past` has written, as far as today's spaces have it."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    return [_past_of(entry) for entry in content["kernels"]]


def _trial_to_json(space: ScheduleSpace, trial: PastTrial) -> list[Any]:
    lesson = trial.lesson
    seconds = float(f"{lesson.latency:.5g}") if math.isfinite(lesson.latency) else None
    choices = space.choices(trial.candidate)
    deviation = round(lesson.deviation, 4)
    return [trial.candidate.sketch, choices, seconds, int(lesson.outcome), deviation]


def _past_of(entry: Mapping[str, Any]) -> PastKernel:
    kernel, target = kernel_from_json(entry["kernel"]), Target.from_json(entry["target"])
    space = schedule_space(kernel, target)
    trials = []
    for sketch, choices, seconds, outcome, deviation in entry["trials"]:
        candidate = space.find(sketch, choices)
        if candidate is not None:
            latency = math.inf if seconds is None else seconds
            trials.append(PastTrial(candidate, Lesson(latency, Outcome(outcome), deviation)))
    return PastKernel(kernel, target, space, tuple(trials))
