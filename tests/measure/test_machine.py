"""What is recorded of the machine."""

from __future__ import annotations

import json
import os

from tunefarm.measure import machine


def test_fingerprint_is_stable_and_fits_in_json() -> None:
    facts = machine.fingerprint()
    assert json.loads(json.dumps(facts)) == facts
    assert len(facts["fingerprint"]) == 16
    assert facts["cores"] == os.cpu_count()
    assert facts["cpu"]


def test_activity_counts_up() -> None:
    before = machine.activity(range(os.cpu_count() or 1))
    noise = machine.activity(range(os.cpu_count() or 1)).since(before)
    assert set(noise.to_json()) == {"steal_seconds", "involuntary_switches", "queued_seconds"}
    assert all(value >= 0 for value in noise.to_json().values())


def test_memory_is_positive_and_oom_kills_are_counted() -> None:
    assert machine.oom_kills() >= 0
