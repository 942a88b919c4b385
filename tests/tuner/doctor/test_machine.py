"""What the doctor says of this machine, and of machines that are set up unluckily."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure.fake_machine import CGROUP2, add_group2, be_in
from tunefarm.tuner.doctor import checks
from tunefarm.tuner.doctor.checks import (
    check_cores,
    check_cpu,
    check_governor,
    check_memory,
    check_target,
)
from tunefarm.tuner.doctor.checkup import Grade, Question


def test_this_machine_is_described() -> None:
    cpu, tiles = check_cpu(Question())
    assert cpu.grade is Grade.OK and cpu.facts["features"]
    assert tiles.name == "matrix tiles"
    (target,) = check_target(Question())
    assert target.grade is Grade.OK and str(target.facts["key"]) in target.text


def test_a_target_that_is_not_this_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_COMPILE__TARGETS", '["host", "armv8-neon"]')
    assert {finding.grade for finding in check_target(Question())} == {Grade.OK, Grade.WARNING}
    monkeypatch.setenv("TUNEFARM_COMPILE__TARGETS", '["no-such-target"]')
    (finding,) = check_target(Question())
    assert finding.grade is Grade.PROBLEM


def test_a_quota_and_too_few_cores_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_ROOT", tmp_path)
    be_in(tmp_path, [CGROUP2.format("/")], "0::/")
    group = add_group2(tmp_path, "", "max 100000")
    assert check_cores(Question())[-1].grade is Grade.OK
    add_group2(tmp_path, "", "50000 100000")
    found = check_cores(Question())
    assert found[0].grade is Grade.WARNING
    assert f"a CPU quota of 0.5 ({group})" in found[0].text
    assert "1 slot for timing" in found[-1].text and found[-1].facts["slots"] == 1
    monkeypatch.setenv("TUNEFARM_COMPILE__THREADS", "4096")
    assert check_cores(Question())[-1].grade is Grade.PROBLEM


@pytest.mark.parametrize(
    ("governor", "grade"),
    [("performance", Grade.OK), ("", Grade.OK), ("powersave", Grade.WARNING)],
)
def test_a_governor_that_lowers_the_clock_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, governor: str, grade: Grade
) -> None:
    monkeypatch.setattr("tunefarm.measure.machine.fingerprint", lambda: {"governor": governor})
    (finding,) = check_governor(Question())
    assert finding.grade is grade


@pytest.mark.parametrize(
    ("kilobytes", "grade"),
    [(8 << 20, Grade.OK), (1 << 20, Grade.WARNING), (1 << 10, Grade.PROBLEM)],
)
def test_little_free_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: int, grade: Grade
) -> None:
    monkeypatch.setattr(checks, "_MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {kilobytes} kB\n")
    (finding,) = check_memory(Question())
    assert finding.grade is grade
