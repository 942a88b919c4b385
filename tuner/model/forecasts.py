"""Forecasts: what was predicted of candidates when they were proposed, against what they came to.

Residuals of this kind (prequential ones: Dawid, J. Royal Stat. Soc. A 147, 1984) are honest: no
prediction knew the measurement, and it was made of just such candidates as are proposed, which are
those that look better than they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

LAST = 64  # forecasts that count
WORST = 1.0  # residual, in log2: how much further off does not matter
USUAL_COUNT = 8  # forecasts that this is worth:
USUAL_PROCESS, USUAL_MODEL = 0.2, 0.3  # residuals of the process and of the model, in log2
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0  # of the deviation
MEMORY = 0.8  # of what batches promised, from one to the next
TRUST = 0.05  # gain that is taken as promised and kept before there is any, in log2


class Forecast(NamedTuple):
    """Log2 of throughput by the process and by the model, by both together, and the deviation."""

    process: float
    model: float
    together: float
    deviation: float


@dataclass(slots=True)
class Forecasts:
    """Of one task."""

    _open: dict[int, Forecast] = field(default_factory=dict)  # by number of the candidate
    _closed: list[tuple[Forecast, float]] = field(default_factory=list)  # and what was measured
    _promised: float = 0.0  # gain expected of the last batches
    _gained: float = 0.0

    def expect(self, number: int, forecast: Forecast) -> None:
        """The candidate with this number is to be measured."""
        self._open[number] = forecast

    def learn(self, number: int, label: float) -> None:
        """It came to this; only the first time counts, and not if it was not expected."""
        forecast = self._open.pop(number, None)
        if forecast is not None:
            self._closed = [*self._closed[1 - LAST :], (forecast, label)]

    def promise(self, gain: float) -> None:
        """A batch is proposed that is expected to gain so much (log2 of the speed-up)."""
        self._promised = MEMORY * self._promised + gain

    def gain(self, gain: float) -> None:
        """What was gained since the last batch was proposed."""
        self._gained = MEMORY * self._gained + gain

    @property
    def kept(self) -> float:
        """The share of the promised gains that came true, at most 1."""
        return min(1.0, (self._gained + TRUST) / (self._promised + TRUST))

    @property
    def model_share(self) -> float:
        """The model's share in the two together: by the inverse of the squared residuals."""
        process = USUAL_COUNT * USUAL_PROCESS**2
        model = USUAL_COUNT * USUAL_MODEL**2
        for forecast, label in self._closed:
            process += _square(forecast.process - label)
            model += _square(forecast.model - label)
        return process / (process + model)

    @property
    def factor(self) -> float:
        """What the deviations are to be multiplied by, to be those of the residuals."""
        squares = float(USUAL_COUNT)
        for forecast, label in self._closed:
            squares += _square(forecast.together - label) / forecast.deviation**2
        factor = math.sqrt(squares / (USUAL_COUNT + len(self._closed)))
        return min(max(factor, LEAST_FACTOR), MOST_FACTOR)


def _square(residual: float) -> float:
    return min(residual**2, WORST**2)
