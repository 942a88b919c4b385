"""What measurements teach, by how they ended."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.tuner.model.test_cost_model import data
from tunefarm.measure.measurement import Status
from tunefarm.tuner.model.cost_model import Outcome, Scores, TrainingData
from tunefarm.tuner.model.features import FeatureMatrix
from tunefarm.tuner.model.lessons import ALONE_DEVIATION, TIMED_CALLS, Lesson, Trainer

BESIDE = {"anchor_seconds": 4e-9}


def test_a_pair_needs_no_yardstick() -> None:
    lesson = Lesson.of(Status.OK, 1e-3, 0.1, BESIDE, deviation=0.012)
    assert lesson is not None
    assert (lesson.latency, lesson.outcome, lesson.deviation) == (1e-3, Outcome.MEASURED, 0.012)
    assert math.isnan(lesson.yardstick)


def test_what_was_measured_alone_is_less_sure_and_has_one() -> None:
    lesson = Lesson.of(Status.OK, 1e-3, 0.1, BESIDE)
    assert lesson == Lesson(1e-3, Outcome.MEASURED, ALONE_DEVIATION, 4e-9)


def test_a_pair_that_scatters_teaches_what_its_deviation_leaves() -> None:
    lesson = Lesson.of(Status.SCATTERED, 1e-3, 0.1, BESIDE, deviation=0.2)
    assert lesson is not None
    assert (lesson.outcome, lesson.deviation) == (Outcome.MEASURED, 0.2)


@pytest.mark.parametrize("status", [Status.UNSTABLE, Status.SCATTERED])
def test_what_scattered_without_a_pair_teaches_nothing(status: Status) -> None:
    assert Lesson.of(status, 1e-3, 0.1, BESIDE) is None
    assert Lesson.of(status, math.inf, 0.1, BESIDE, deviation=0.2) is None


@pytest.mark.parametrize("status", [Status.QUARANTINED, Status.INFRASTRUCTURE])
def test_neither_fast_nor_failing_teaches_nothing(status: Status) -> None:
    assert Lesson.of(status, math.inf, 0.1, BESIDE) is None


def test_a_run_ended_for_its_time_is_a_bound_and_a_crash_a_failure() -> None:
    bound = Lesson.of(Status.RUN_TIMEOUT, math.inf, 8.0, {}, deviation=0.01)
    assert bound is not None
    assert (bound.latency, bound.outcome) == (8.0 / TIMED_CALLS, Outcome.ABOVE)
    crash = Lesson.of(Status.CRASHED, math.inf, 8.0, {})
    assert crash is not None and crash.outcome is Outcome.FAILED


class Model:
    """Remembers what it was taught; with `gate` a training waits until that is set."""

    trained = True

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.sizes: list[int] = []
        self.gate = gate
        self.error: Exception | None = None

    def fit(self, data: TrainingData) -> None:
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        self.sizes.append(len(data))

    def predict(self, features: FeatureMatrix) -> Scores:
        empty = np.zeros(len(features), np.float32)
        return Scores(empty, empty)


def rows(count: int) -> Callable[[], TrainingData]:
    return lambda: data(None, [1.0] * count)


def test_retraining_waits_for_a_share_of_new_measurements() -> None:
    model = Model()
    trainer = Trainer(model, background=False)
    for known in range(101):
        trainer.offer(known, rows(known))
    assert model.sizes[0] == 1  # the first measurement
    assert model.sizes[1] == 9
    assert len(model.sizes) < 25
    steps = [(b - a) / a for a, b in zip(model.sizes[5:], model.sizes[6:], strict=False)]
    assert all(0.1 < step < 0.3 for step in steps)


def test_nobody_waits_for_a_training_in_the_background() -> None:
    gate = threading.Event()
    model = Model(gate)
    trainer = Trainer(model, background=True)
    trainer.offer(10, rows(10))
    trainer.offer(100, rows(100))  # still busy with the first
    assert model.sizes == []
    gate.set()
    trainer.close()
    assert model.sizes == [10]


def test_a_training_that_was_put_off_comes_later() -> None:
    gate = threading.Event()
    model = Model(gate)
    trainer = Trainer(model, background=True)
    trainer.offer(10, rows(10))
    gate.set()
    while 100 not in model.sizes:
        trainer.offer(100, rows(100))
    trainer.close()
    assert model.sizes == [10, 100]
    assert trainer.seconds >= 0


def test_an_error_of_a_training_is_raised() -> None:
    model = Model()
    model.error = ValueError("labels")
    trainer = Trainer(model, background=True)
    trainer.offer(10, rows(10))
    with pytest.raises(ValueError, match="labels"):
        while True:
            trainer.offer(100, rows(100))
    trainer.close()


def test_what_was_known_before_is_taught_at_once() -> None:
    model = Model()
    trainer = Trainer(model, background=False)
    trainer.teach(0, rows(500))
    trainer.offer(0, rows(500))
    assert model.sizes == [500]
    trainer.offer(8, rows(508))
    assert model.sizes == [500, 508]
