"""The text for Prometheus, read by Prometheus's own parser."""

from __future__ import annotations

import math
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from tests.tuner.reports.test_job_state import STATE, TASK
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.metrics import metrics_text


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
