"""Noise in words, and the measurement that finds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.measure.farm.noise import Noise
from tunefarm.tuner.doctor.checks import check_noise, disturbances, verdict
from tunefarm.tuner.doctor.checkup import Finding, Grade, Question

QUIET = Noise(500, 0.03, 0.02, 0.95, 0.1, 0.0, 0.01, 14, 28, 0.004)


def grades(findings: list[Finding]) -> list[Grade]:
    return [finding.grade for finding in findings]


@pytest.mark.parametrize(
    ("scatter", "grade", "words"),
    [
        (0.03, Grade.OK, "quiet: differences of 1 % show within 35 pairs (0.14 s)"),
        (0.1, Grade.WARNING, "noisy: differences of 5 % show within 17 pairs"),
        (0.5, Grade.PROBLEM, "too busy: differences of 2 % take"),
    ],
)
def test_the_verdict_is_in_words(scatter: float, grade: Grade, words: str) -> None:
    found = verdict(replace(QUIET, scatter=scatter))
    assert found.grade is grade and found.text.startswith(words)
    assert bool(found.advice) == (grade is not Grade.OK)


def test_what_others_take_is_told() -> None:
    assert grades(disturbances(QUIET)) == [Grade.OK, Grade.OK]
    busy = disturbances(replace(QUIET, steal=0.3, queued=0.4))
    assert grades(busy) == [Grade.WARNING, Grade.WARNING]
    assert "30.0 %" in busy[0].text and "40.0 %" in busy[1].text


def test_too_few_measurements_are_not_judged() -> None:
    found = check_noise(Question(seconds=0.01))
    assert grades(found) == [Grade.WARNING] and "too few" in found[0].text


def test_more_threads_than_cores_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_COMPILE__THREADS", "4096")
    (finding,) = check_noise(Question(seconds=0.01))
    assert finding.grade is Grade.PROBLEM and "cores" in finding.text
