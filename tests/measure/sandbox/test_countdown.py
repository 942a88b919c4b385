"""A time limit does not run out while the process is stopped."""

from __future__ import annotations

import pytest

from tunefarm.measure.sandbox.worker_process import Countdown


class Waiting:
    """A clock, and something that happens at a moment; at some moments the process is stopped."""

    def __init__(self, happens: float, stops: dict[float, float]) -> None:
        self.now = 0.0
        self._happens = happens
        self._stops = stops

    def wait(self, seconds: float) -> bool:
        end = self.now + seconds
        for begin, length in self._stops.items():
            if self.now <= begin < end:
                end += length
                break
        self.now = min(end, max(self.now, self._happens))
        return self.now >= self._happens


@pytest.mark.parametrize("limit", [0.5, 3.5])
def test_what_happens_in_time_is_seen_and_what_does_not_is_late(limit: float) -> None:
    waiting = Waiting(limit - 0.1, {})
    countdown = Countdown(limit, clock=lambda: waiting.now)
    assert countdown.wait(waiting.wait)
    assert countdown.left == pytest.approx(0.1)
    waiting = Waiting(limit + 0.1, {})
    countdown = Countdown(limit, clock=lambda: waiting.now)
    assert not countdown.wait(waiting.wait)
    assert waiting.now == pytest.approx(limit)


def test_an_hour_in_which_the_process_was_stopped_does_not_count() -> None:
    waiting = Waiting(3600.0 + 4.0, {1.5: 3600.0})
    countdown = Countdown(5.0, clock=lambda: waiting.now)
    assert countdown.wait(waiting.wait)
    assert countdown.left > 0.0


def test_what_has_happened_is_seen_when_nothing_is_left() -> None:
    assert Countdown(0.0).wait(lambda seconds: seconds == 0.0)
    assert not Countdown(0.0).wait(lambda _: False)
