"""The monitor writes down where a job stands, seldom, and never ends a job."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.tuner.commands.live_jobs import task
from tests.tuner.reports.test_job_state import STATE, TASK
from tests.tuner.reports.traces import assert_nested, lanes
from tunefarm.db import queries
from tunefarm.db.store import Store
from tunefarm.measure.farm.runner import Step
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.trace import Trace
from tunefarm.tuner.search.monitor import RECORD_SECONDS, Monitor, add_step, metrics_text


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def recorded(store: Store) -> JobState:
    return JobState.of(queries.jobs(store)[0].progress)


def test_states_are_recorded_seldom_and_phases_at_once(store: Store) -> None:
    clock = Clock()
    monitor = Monitor(clock=clock, now=lambda: 1000.0)
    monitor.begin(store, store.start_job("net", "h", {}).id, "net")
    monitor.enter("searching", [task(0)], 60.0)
    for number in range(1, 10):
        clock.now += 0.9 * RECORD_SECONDS / 9
        monitor.count(["ok", "crashed"])
        monitor.update([task(number)], 50.0, workers=4, busy=3)
    assert recorded(store).trials == 0 and recorded(store).phase == "searching"
    clock.now += RECORD_SECONDS
    monitor.update([task(10)], 40.0, workers=4, busy=2)
    found = recorded(store)
    assert (found.trials, found.left, found.workers, found.busy) == (10, 40.0, 4, 2)
    assert found.measured == {"ok": 9, "crashed": 9} and found.at == 1000.0
    monitor.enter("comparing", [task(11)], None)
    assert recorded(store).phase == "comparing" and recorded(store).left is None


def test_a_job_after_another_begins_anew(store: Store, tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "t.json"
    monitor = Monitor(clock=clock, trace=str(file))
    for model in ("first", "second"):
        monitor.begin(store, store.start_job(model, "h", {}).id, model)
        monitor.enter("searching", [task(3)], None)
        monitor.count(["ok"])
        clock.now += 7.0
        ended = monitor.end([task(4)], "finished")
        assert ended.measured == {"ok": 1} and ended.elapsed == 7.0 and ended.phase == ""
    found = lanes(json.loads(file.read_text()))
    (first,), (second,) = (found[lane] for lane in sorted(found))
    assert first["dur"] == second["dur"] == 7e6 and second["ts"] == first["ts"] + 7e6


def test_a_file_that_cannot_be_written_is_told_once(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    gone = tmp_path / "gone"
    monitor = Monitor(metrics=str(gone / "m"), trace=str(gone / "t"), notify=said.append)
    monitor.begin(store, store.start_job("net", "h", {}).id, "net")
    for phase in ("preparing", "searching"):
        monitor.enter(phase, [task(1)], None)
    monitor.end([task(1)], "finished")
    assert len(said) == 2 and all(line.startswith(f"cannot write {gone}") for line in said)


def test_parts_of_a_step_lie_within_it() -> None:
    trace = Trace()
    add_step(trace, Step(True, 0, 0, "1", "key", 0.0, 1.0, "ok", build_seconds=0.9), "conv")
    # What the worker tells may be longer than what was seen of it here.
    more = Step(False, 0, 0, "1", "key", 1.0, 2.0, "ok", check_seconds=3.0, run_seconds=0.5)
    add_step(trace, more, "conv")
    add_step(trace, Step(False, 0, 0, "x-final-3", "key", 2.0, 3.0), "conv")
    found = trace.to_json()
    assert_nested(found)
    names = {lane: [event["name"] for event in events] for lane, events in lanes(found).items()}
    assert names["node 0/builder 0"] == ["conv", "build"]
    slot = ["conv", "check", "timed runs", "finalists of conv"]
    assert names["node 0/timing slot 0"] == slot


def test_the_history_has_every_better_expectation(store: Store) -> None:
    clock = Clock()
    monitor = Monitor(clock=clock, now=lambda: 1000.0)
    monitor.begin(store, store.start_job("net", "h", {}).id, "net")
    for number, best in ((1, 4e-3), (2, 3e-3), (2, 3e-3), (5, 1e-3)):
        clock.now += 0.5
        monitor.update([task(number, best)], None, workers=1, busy=1)
    history = monitor.end([task(5, 1e-3)], "finished").history
    assert [tuple(moment) for moment in history] == [
        (0.5, 1, 4e-3),
        (1.0, 2, 3e-3),
        (2.0, 5, 1e-3),
    ]
    monitor.begin(store, store.start_job("other", "h", {}).id, "other")
    assert monitor.end([], "finished").history == ()


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("gauge", "counter")
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_state_of_a_job_is_read_by_prometheus() -> None:
    found = samples(metrics_text(STATE, "0123", "net.onnx", "running"))
    common = {"job": "0123", "model": "net.onnx"}
    assert found["tunefarm_job_info"] == [
        ({**common, "state": "running", "phase": "searching"}, 1.0)
    ]
    by_status = {labels["status"]: value for labels, value in found["tunefarm_trials_total"]}
    assert by_status == {"ok": 5, "crashed": 1}
    latencies = {labels["kernel"]: v for labels, v in found["tunefarm_kernel_latency_seconds"]}
    assert latencies == {"conv": 1e-3, "gemm": 1e-3}
    assert found["tunefarm_model_latency_seconds"] == [(common, STATE.expected.value)]
    assert found["tunefarm_model_untuned_latency_seconds"] == [(common, STATE.untuned)]
    assert found["tunefarm_left_seconds"] == [(common, 30.0)]
    assert found["tunefarm_workers"] == [(common, 4.0)]
    assert found["tunefarm_requests_under_way"] == [(common, 3.0)]


def test_what_is_not_known_has_no_line() -> None:
    unknown = replace(TASK, default=math.inf, best=math.inf, expected=math.nan)
    found = samples(metrics_text(JobState(tasks=(unknown,)), "0123", "net.onnx", "failed"))
    for name in ("model_latency_seconds", "kernel_latency_seconds", "left_seconds", "trials_total"):
        assert f"tunefarm_{name}" not in found


def test_names_cannot_add_lines() -> None:
    name = 'a"\n# TYPE x\\ é\x1b{}'
    text = metrics_text(JobState(tasks=(replace(TASK, kernel=name),)), "0", name, "running")
    (labels, _), *others = samples(text)["tunefarm_kernel_latency_seconds"]
    assert not others
    assert labels["kernel"] == labels["model"] == name.replace("\x1b", "\\x1b")
