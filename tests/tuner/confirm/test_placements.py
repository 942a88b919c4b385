"""Whole models at one placement after the other: their interval, and what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.measure.clock_traces import KINDS, against_itself
from tunefarm.compiler import build
from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.tuner.confirm import latency
from tunefarm.tuner.confirm.latency import (
    COMPARISON,
    LEAST_PLACEMENTS,
    LatencyOptions,
    Program,
    compare_models,
    latencies_at_placements,
    latency_of_meetings,
    meetings_of,
)
from tunefarm.tuner.confirm.verdict import Meeting

QUICK = replace(COMPARISON, rounds=3, min_sample_seconds=1e-4, placements=3, precise=None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Executable:
    path = tmp_path_factory.mktemp("placements") / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return build(str(path))


def comparisons(kind: str, between: float, count: int) -> list[list[Meeting]]:
    """Comparisons of a build with itself on a recorded core; what is between two placements changes
    a ratio by this standard deviation."""
    runs = count * COMPARISON.placements
    first, second = against_itself(kind, COMPARISON.rounds, runs, seed=3)
    second = second * np.exp(np.random.default_rng(4).normal(0.0, between, (runs, 1)))
    meetings: list[Meeting] = [
        {0: a, 1: b} for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    step = COMPARISON.placements
    return [meetings[number : number + step] for number in range(0, runs, step)]


@pytest.mark.parametrize(
    ("kind", "between", "width"),
    [(KINDS[0], 0.01, 0.03), (KINDS[1], 0.01, 0.03), (KINDS[1], 0.02, 0.04)],
)
def test_the_interval_of_a_build_and_itself_holds_1_and_is_narrow(
    kind: str, between: float, width: float
) -> None:
    found = [latency_of_meetings(meetings) for meetings in comparisons(kind, between, 400)]
    assert sum(item.low > 1.0 or item.high < 1.0 for item in found) <= 40
    assert np.median([item.high / item.low - 1.0 for item in found]) <= width


def test_models_have_all_their_memory_before_they_are_timed(tmp_path: Path) -> None:
    """What is timed after a placed model's first call holds no page fault."""
    large = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4096, 64] x) => (float[1, 64, 4096] z)
        { y = Transpose<perm = [0, 2, 1]>(x)  z = Softmax(y) }"""
    )
    onnx.save(large, tmp_path / "large.onnx")
    built = build(str(tmp_path / "large.onnx"))
    clock = SliceClock()
    for program in latency.placed_programs([built, built]):
        program()
        faults = []
        for _ in range(5):
            clock.start()
            program()
            clock.seconds()
            faults.append(clock.faults)
        assert min(faults) == 0
    clock.close()


def test_one_placement_is_one_run_of_a_pair_however_many_its_rounds() -> None:
    """All slices of one placement agree on 2 %, which another would not."""
    found = latency_of_meetings([{0: [1.0] * 500, 1: [1.02] * 500}])
    assert found.low < 1.0 < found.high


class Machine:
    """Programs that take these seconds by a clock that they move, each at a placement changed by a
    draw of this standard deviation."""

    def __init__(self, *seconds: float, between: float = 0.01) -> None:
        self.seconds, self.between = seconds, between
        self.now = 0.0
        self.placed = 0
        self.rng = np.random.default_rng(5)

    def place(self) -> list[Program]:
        self.placed += 1
        factors = np.exp(self.rng.normal(0.0, self.between, len(self.seconds)))
        return [partial(self.run, s * f) for s, f in zip(self.seconds, factors, strict=True)]

    def run(self, seconds: float) -> None:
        self.now += seconds * float(np.exp(self.rng.normal(0.0, 0.005)))

    def met(self, options: LatencyOptions) -> list[Meeting]:
        return latencies_at_placements(self.place, options, lambda: self.now)


def test_there_are_more_placements_until_the_ratio_is_known() -> None:
    options = replace(COMPARISON, max_seconds=1e6)
    quiet, noisy = Machine(1e-4, 1e-4, between=0.0), Machine(1e-4, 1e-4, between=0.03)
    assert len(quiet.met(options)) == COMPARISON.placements
    found = noisy.met(options)
    assert len(found) > COMPARISON.placements
    assert noisy.placed == len(found)
    assert latency_of_meetings(found).high / latency_of_meetings(found).low < 1.021


def test_the_time_bounds_the_placements() -> None:
    machine = Machine(1e-4, 1e-4, between=0.2)
    machine.met(replace(COMPARISON, max_seconds=1.0))
    assert 0.8 < machine.now < 1.2


@pytest.mark.parametrize(("seconds", "placements"), [(0.2, LEAST_PLACEMENTS), (10.0, 1)])
def test_slow_models_have_pairs_enough_for_a_verdict_unless_that_takes_long(
    seconds: float, placements: int
) -> None:
    found = Machine(seconds, seconds).met(COMPARISON)
    assert len(found) == placements
    assert all(len(samples) == 3 for meeting in found for samples in meeting.values())


def test_one_build_alone_ends_after_the_fewest_placements() -> None:
    assert len(Machine(1e-4).met(COMPARISON)) == COMPARISON.placements


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Any]]:
    """The programs of each placement."""
    found: list[Sequence[Any]] = []
    real = latency.interleaved_latencies

    def spy(programs: Sequence[Program], *rest: Any) -> list[list[float]]:
        found.append(programs)
        return real(programs, *rest)

    monkeypatch.setattr(latency, "interleaved_latencies", spy)
    return found


def test_code_constants_and_buffers_lie_elsewhere_at_each_placement(
    model: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = spied(monkeypatch)
    meetings_of([model, model], QUICK)
    assert len(placed) == 3
    places: dict[str, set[int]] = {}
    for programs in placed:
        assert len(programs) == 2
        for program in programs:
            executable: Executable = program.func.__self__
            frame, inputs, outputs = program.args
            places.setdefault("code", set()).add(
                executable.kernel_address(executable.spec.objects[0].symbol)
            )
            constants = [c for c in executable.spec.constants if c.size]
            places.setdefault("constants", set()).add(address_of(constants[0]))
            places.setdefault("inputs", set()).add(address_of(next(iter(inputs.values()))))
            places.setdefault("outputs", set()).add(address_of(next(iter(outputs.values()))))
            places.setdefault("arena", set()).add(frame.arena_address(0))
    lines = {name: {place % 4096 for place in found} for name, found in places.items()}
    assert all(place % ALIGNMENT == 0 for found in lines.values() for place in found)
    assert len(places["code"]) >= 4  # of 6; what was unloaded leaves room
    assert all(len(lines[name]) > 1 for name in ("constants", "inputs", "outputs", "arena"))


def test_large_constants_stay_where_they_are(
    model: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "MOVED_BYTES", model.constant_bytes - 1)
    placed = spied(monkeypatch)
    meetings_of([model], QUICK)
    constants = {
        address_of(constant)
        for (program,) in placed
        for constant in program.func.__self__.spec.constants
    }
    assert constants == {address_of(constant) for constant in model.spec.constants}


def test_one_build_is_measured_once_and_unchanged(
    model: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = spied(monkeypatch)
    again = Executable(model.spec)
    found = compare_models(model, again, model, QUICK)
    assert {len(programs) for programs in placed} == {1}
    assert found.is_unchanged and found.tuned == found.untuned > 0.0
    assert found.applied.is_unchanged
    assert (found.former, found.is_slower, found.kept) == (None, False, None)
    assert found.to_json()["unchanged"] and found.to_json()["ratio"] is None


@pytest.mark.parametrize(
    ("same", "measured"), [("tuned", 2), ("untuned", 2), ("neither", 3), ("all but one", 2)]
)
def test_each_build_is_measured_once(
    same: str, measured: int, model: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = spied(monkeypatch)
    second, third = (Executable(_other(model, number)) for number in (1, 2))
    trios: dict[str, tuple[Executable, Executable, Executable]] = {
        "tuned": (model, second, second),
        "untuned": (model, second, model),
        "neither": (model, second, third),
        "all but one": (model, model, second),
    }
    found = compare_models(*trios[same], options=QUICK)
    assert {len(programs) for programs in placed} == {measured}
    assert found.is_unchanged == (same == "all but one")
    assert (found.former is not None) == (same in ("neither", "all but one"))
    if same == "tuned":
        assert not found.is_slower  # nothing else could stay


def test_a_tuned_model_that_stays_in_any_case_is_not_slower() -> None:
    slower = [{0: [1.0] * 20, 1: [1.5] * 20}] * 4
    assert latency_of_meetings(slower).is_slower
    assert not latency_of_meetings(slower, former=1).is_slower
    refused = latency_of_meetings(slower, former=0)
    assert refused.is_slower and refused.applied.is_unchanged


def test_outputs_that_differ_are_refused(model: Executable) -> None:
    calls: list[int] = []

    def disagree(*_: Any) -> bool:
        calls.append(1)
        return len(calls) < 2

    with pytest.raises(MeasureError, match="differs from the untuned one's"):
        meetings_of([model, model], QUICK, disagree)


def _other(model: Executable, number: int) -> Any:
    """The same model by another plan, which has so many more lines between its kernels' values."""
    return replace(model.spec, arena_bytes=model.spec.arena_bytes + number * ALIGNMENT)
