"""A built model next to the one that it replaces: outputs, then latency in interleaved runs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.artefact.file_header import digest_of
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.compare import Comparison
from tunefarm.tuner.calibration.data import SampleForm, read_samples
from tunefarm.tuner.confirm.drawn_inputs import drawn_inputs
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    LatencyOptions,
    Program,
    latencies_at_placements,
    outputs_agree,
    pinned,
    placed_programs,
)
from tunefarm.tuner.confirm.verdict import LEAST_PAIRS, Meeting, compare

DRAWN = 4
"""Sets of random inputs where none are given."""
MATTERS = 0.01
"""A slow-down below 1 % is not claimed: two runs of one build differ by as much."""
ALLOWED = 0.03
"""Where the interval reaches beyond 3 %, a slow-down that matters could hide in it."""
PRECISE = 0.0035
"""Standard error up to which latencies are compared: half of the interval is 0.7 % then, and a
slow-down of 3 % lies four standard errors above what is claimed (0.5 %, which is enough to choose
between schedules, misses one in 40). Then the interval decides: it is narrower than what lies
between `MATTERS` and `ALLOWED`."""
CLEAR = 6e-5
"""Chance of an interval of four standard errors to either side, which ends a measurement sooner: it
is looked at after each placement, and 95 % would be wrong in one of some looks."""
LIMIT_SECONDS = 600.0
"""Of measuring, where no other is given: it ends as soon as latencies are known to `PRECISE`, which
takes seconds to minutes."""


class CanaryVerdict(StrEnum):
    """Whether the new model may take the place of the old one."""

    PASSED = "passed"
    WRONG = "outputs differ"
    SLOWER = "slower"
    UNCLEAR = "cannot be judged"


EXIT_CODES: Mapping[CanaryVerdict, int] = {
    CanaryVerdict.PASSED: 0,
    CanaryVerdict.WRONG: 1,
    CanaryVerdict.SLOWER: 1,
    CanaryVerdict.UNCLEAR: 3,
}
"""Of `tune verify --against`; 2 are wrong options."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of an output, over the largest number of the old model's, and the
    number of the inputs that it was found with."""

    output: str
    error: float
    sample: int


@dataclass(frozen=True, slots=True)
class Canary:
    """What came of a new model next to an old one.

    `old` and `new` are SHA-256 of the artifacts' manifests. `samples` sets of inputs were run;
    `differences` are the outputs beyond the tolerance, worst first. `time` is the new model's over
    the old one's: None where outputs differ, `is_unchanged` where both run the same code. It was
    measured for at most `limit` seconds.
    """

    old: str
    new: str
    samples: int
    differences: tuple[Difference, ...]
    time: Comparison | None
    limit: float = LIMIT_SECONDS

    @property
    def verdict(self) -> CanaryVerdict:
        """What follows from that."""
        if self.differences or self.time is None:
            return CanaryVerdict.WRONG
        return judged(self.time)

    def to_json(self) -> dict[str, Any]:
        """It as JSON values; there is no ratio where both are one build."""
        time = None if self.time is None or self.time.is_unchanged else asdict(self.time)
        return {
            "verdict": self.verdict.name.lower(),
            "old": self.old,
            "new": self.new,
            "samples": self.samples,
            "differences": [asdict(difference) for difference in self.differences],
            "unchanged": self.time is not None and self.time.is_unchanged,
            "time": time,
            "limit_seconds": self.limit,
        }


def judged(time: Comparison) -> CanaryVerdict:
    """What the new model's time over the old one's says."""
    if time.is_unchanged:
        return CanaryVerdict.PASSED
    if time.pairs < LEAST_PAIRS:
        return CanaryVerdict.UNCLEAR
    if time.low > 1.0 + MATTERS:
        return CanaryVerdict.SLOWER
    return CanaryVerdict.PASSED if time.high < 1.0 + ALLOWED else CanaryVerdict.UNCLEAR


def compare_artifacts(
    old: str,
    new: str,
    inputs: str | None,
    seconds: float = LIMIT_SECONDS,
    threads: int | None = None,
) -> Canary:
    """Run two artifacts of one model on the same inputs: a file or folder of .npz, or random ones.

    Outputs are compared first; latency is measured where they agree, until its interval decides,
    for at most so many seconds, and once more where that finds a slow-down.
    Raises `ArtefactError` for what cannot be loaded, `InputError` for models with other inputs or
    outputs, and for inputs that do not fit.
    """
    before, after = load(old, threads), load(new, threads)
    require_same_ports(before, after)
    if inputs is None:
        sets: Iterable[Mapping[str, Array]] = [drawn_inputs(before, seed) for seed in range(DRAWN)]
    else:
        sets = read_samples(inputs, SampleForm(before.signature))
    count, first, differences = 0, None, dict[str, Difference]()
    for sample in sets:
        first = sample if first is None else first
        for found in different_outputs(before, after, sample, count):
            worst = differences.get(found.output, found)
            differences[found.output] = max(worst, found, key=lambda item: item.error)
        count += 1
    assert first is not None  # data without a sample is refused where it is read
    worst_first = tuple(sorted(differences.values(), key=lambda item: -item.error))
    options = replace(COMPARISON, max_seconds=seconds, precise=PRECISE)
    time = None if worst_first else latency_ratio(before, after, first, options)
    if time is not None and judged(time) is CanaryVerdict.SLOWER:
        time = both(time, latency_ratio(before, after, first, options))
    return Canary(digest_of(old), digest_of(new), count, worst_first, time, seconds)


def both(first: Comparison, second: Comparison) -> Comparison:
    """What two measurements hold: a slow-down is claimed only where a fresh one finds it again."""
    return Comparison(
        math.sqrt(first.ratio * second.ratio),
        min(first.low, second.low),
        max(first.high, second.high),
        first.pairs + second.pairs,
    )


def require_same_ports(old: Executable, new: Executable) -> None:
    """Raise `InputError` unless both take the same inputs, and give the same outputs."""
    for what, before, after in (
        ("inputs", old.inputs, new.inputs),
        ("outputs", old.outputs, new.outputs),
    ):
        if before != after:
            texts = [
                ", ".join(f"{n} {type}" for n, type in ports.items()) for ports in (before, after)
            ]
            raise InputError(
                f"the models have not the same {what}: {texts[0]}, and {texts[1]}",
                hint="both artifacts must be built from the same model",
            )


def different_outputs(
    old: Executable,
    new: Executable,
    inputs: Mapping[str, Array],
    number: int = 0,
    agree: Callable[[Array, Array], bool] = outputs_agree,
) -> list[Difference]:
    """The outputs in which the models differ by more than rounding, for one set of inputs."""
    expected, actual = old.run(inputs), new.run(inputs)
    found = []
    for name, wanted in expected.items():
        for before, after in zip(_arrays(wanted), _arrays(actual[name]), strict=True):
            if before.shape != after.shape or before.dtype != after.dtype:
                found.append(Difference(name, float("inf"), number))
            elif not agree(after, before):
                found.append(Difference(name, _error(after, before), number))
    return found


def _arrays(output: object) -> list[Array]:
    """The tensors of an output, which may be a list, or an optional one."""
    if output is None:
        return []
    return [np.asarray(item) for item in (output if isinstance(output, list) else [output])]


def _error(actual: Array, expected: Array) -> float:
    """The largest difference over the largest number; infinite where that is none."""
    if expected.dtype.kind not in "fiub" and expected.dtype.itemsize > 2:
        return float("inf")
    wanted, found = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = float(np.abs(found - wanted).max(initial=0.0))
        error = difference / max(float(np.abs(wanted).max(initial=0.0)), 1e-30)
    return error if np.isfinite(error) else float("inf")


def latency_ratio(
    old: Executable,
    new: Executable,
    inputs: Mapping[str, Array],
    options: LatencyOptions = COMPARISON,
) -> Comparison:
    """Time of the new model over the old one's, in interleaved runs at several placements.

    Where both run the same code nothing is measured.
    """
    if old.code_digest == new.code_digest:
        return Comparison(1.0, 1.0, 1.0, 0)

    def place() -> Sequence[Program]:
        if secrets.randbelow(2):  # which of them lies first in memory is drawn, too
            return placed_programs([new, old], inputs=inputs)[::-1]
        return placed_programs([old, new], inputs=inputs)

    with pinned(old.threads):
        serial = replace(options, serial=old.threads == 1)
        return compare(latencies_at_placements(place, serial, decides=decides), 1, 0)


def decides(meetings: Sequence[Meeting]) -> bool:
    """Whether a verdict is clear, however often it is looked for."""
    return judged(compare(meetings, 1, 0, CLEAR)) is not CanaryVerdict.UNCLEAR


def canary_lines(found: Canary) -> Sequence[str]:
    """What is printed of it."""
    sets = "1 set of inputs" if found.samples == 1 else f"{found.samples} sets of inputs"
    lines = [f"{found.verdict.value}: {_why(found)} ({sets})"]
    lines += [
        f"output {item.output!r} differs by {item.error:.2g} of its largest number, for inputs "
        f"{item.sample}"
        for item in found.differences
    ]
    return [*lines, f"old: {found.old}", f"new: {found.new}"]


def _why(found: Canary) -> str:
    if found.time is None:
        return "the new model computes something else"
    if found.time.is_unchanged:
        return "both run the same code"
    time = found.time
    ratio = f"its time is {time.ratio:.3f} ({time.low:.3f} to {time.high:.3f}) of the old one's"
    if found.verdict is CanaryVerdict.UNCLEAR:
        limit = f"the limit of {found.limit / 60.0:.3g} min"
        return f"{ratio} after {limit}; give it more --minutes, or a quieter machine"
    return ratio
