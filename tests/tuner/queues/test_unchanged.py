"""A turn whose model is the untuned build to the byte, in the queue's records and tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.queues.entry_options import turn_of_result
from tunefarm.tuner.queues.summary import EntrySummary, faster

SAME = ModelLatency(7e-3, 7e-3, 0.01, 0.01, 1.0, 1.0, 1.0)
GAIN = ModelLatency(7e-3, 3.5e-3, 0.01, 0.01, 0.5, 0.49, 0.51)
ENTRY = EntrySummary(
    id="id",
    name="net",
    model="net.onnx",
    threads=1,
    targets="host",
    state="finished",
    why="",
    seconds=60.0,
    turns=1,
    trials=10,
    untuned=7e-3,
    tuned=3.5e-3,
    unchanged=False,
    speed_up=2.0,
    low=1.9,
    high=2.1,
    jobs=(),
    ends=None,
    night_ends=None,
)


@pytest.mark.parametrize(("latency", "ratio"), [(SAME, 1.0), (GAIN, 0.5)])
def test_a_turn_reads_what_a_job_says_of_its_model(latency: ModelLatency, ratio: float) -> None:
    turn = turn_of_result({"latency": latency.to_json()}, 0.0, 60.0, 60.0)
    assert (turn.ratio, turn.tuned) == (ratio, 7e-3 * ratio)


def test_a_model_that_is_unchanged_has_no_speed_up() -> None:
    assert faster(ENTRY) == "2.00x (1.90x to 2.10x)"
    assert faster(replace(ENTRY, unchanged=True, speed_up=None, low=None, high=None)) == "unchanged"
