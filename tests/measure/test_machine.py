"""What is recorded of the machine."""

from __future__ import annotations

import json
import os
import platform

import pytest

from tunefarm.measure import machine


def test_fingerprint_is_stable_and_fits_in_json() -> None:
    facts = machine.fingerprint()
    assert json.loads(json.dumps(facts)) == facts
    assert len(facts["fingerprint"]) == 16
    assert facts["cores"] == os.cpu_count()
    assert facts["cpu"]


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n",
            "AMD EPYC (family 26, model 2)",
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "ARM (implementer 0x41, part 0xd40)"),
        ("", "ARM"),
    ],
)
def test_cpus_that_share_a_marketing_name_are_told_apart(
    cpuinfo: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_read", lambda path: cpuinfo * 2 if "cpuinfo" in path else "")
    monkeypatch.setattr(platform, "processor", lambda: "ARM")
    machine.fingerprint.cache_clear()
    try:
        assert machine.cpu_name() == name
        assert machine.known_as(name) == {name, name.partition(" (")[0]}
    finally:
        machine.fingerprint.cache_clear()


def test_activity_counts_up() -> None:
    before = machine.activity(range(os.cpu_count() or 1))
    noise = machine.activity(range(os.cpu_count() or 1)).since(before)
    assert set(noise.to_json()) == {"steal_seconds", "involuntary_switches", "queued_seconds"}
    assert all(value >= 0 for value in noise.to_json().values())


def test_memory_is_positive_and_oom_kills_are_counted() -> None:
    assert machine.oom_kills() >= 0
