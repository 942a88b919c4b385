"""What a command says of calibration and of the error that it allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunefarm.configs.errors import SettingsError

if TYPE_CHECKING:  # NumPy: most commands need none of it
    from tunefarm.tuner.calibration.metric import Metric
    from tunefarm.tuner.calibration.ranges import Method

INT8, AUTO = "int8", "auto"
CHOSEN = (INT8, AUTO)
"""The precision at which something is chosen for the model as a whole."""


@dataclass(frozen=True, slots=True)
class PrecisionOptions:
    """`calibration` names data, `calibration_method` how ranges follow from it, `max_error` the
    largest relative error of the outputs, or `max_loss` what a `metric` with `labels` may lose;
    `point` asks for a point of an earlier choice. Of the data of `several` programs each takes what
    has its sizes."""

    calibration: str | None = None
    calibration_method: str | None = None
    max_error: float | None = None
    metric: str | None = None
    labels: str | None = None
    max_loss: float | None = None
    point: int | None = None
    several: bool = False

    def check(self, numerics: str) -> None:
        """Raise SettingsError for options that do not fit this precision, or each other."""
        if self.calibration is not None and numerics not in CHOSEN:
            raise SettingsError(
                "--calibration is for --precision int8 and auto", hint="say which of them"
            )
        if self.calibration_method is not None and self.calibration is None:
            raise SettingsError("--calibration-method needs --calibration")
        searched = (self.max_error, self.metric, self.labels, self.max_loss, self.point)
        if numerics != AUTO and any(value is not None for value in searched):
            raise SettingsError(
                "--max-error, --metric, --labels, --max-loss and --point are for --precision auto"
            )
        if self.max_error is not None and self.metric is not None:
            raise SettingsError("--max-error and --metric measure different things: give one")
        if self.max_error is not None and self.point is not None:
            raise SettingsError("--max-error and --point both say which point: give one")
        if self.metric is None and (self.max_loss is not None or self.labels is not None):
            raise SettingsError("--max-loss and --labels need --metric FILE.py:FUNCTION")
        for name, value in (("--max-error", self.max_error), ("--max-loss", self.max_loss)):
            if value is not None and not 0.0 <= value < math.inf:
                raise SettingsError(f"{name} {value:g}: it must be a number from 0 on")
        if self.calibration_method is not None:
            self.method()

    def check_search(self) -> None:
        """Raise SettingsError unless all is there that a search needs."""
        if self.metric is None and self.max_error is None:
            raise SettingsError(
                "--precision auto needs the error that is allowed",
                hint="--max-error 0.01, or --metric FILE.py:FUNCTION with --max-loss",
            )
        if self.metric is not None and self.max_loss is None:
            raise SettingsError("--metric needs --max-loss: how much of it may be lost")
        if self.metric is not None and self.calibration is None:
            raise SettingsError("--metric needs --calibration: the inputs that labels belong to")

    @property
    def budget(self) -> float:
        """The largest error, or loss, that is allowed."""
        allowed = self.max_error if self.metric is None else self.max_loss
        assert allowed is not None, "check_search comes first"
        return allowed

    def method(self) -> Method:
        """How ranges follow from values. Raises SettingsError for a method that is none."""
        from tunefarm.tuner.calibration.ranges import MINMAX, Method

        return Method.of(self.calibration_method or MINMAX)

    def load_metric(self) -> Metric | None:
        """The user's metric with its labels. Raises SettingsError if it is not there."""
        if self.metric is None:
            return None
        from tunefarm.tuner.calibration.metric import Metric

        return Metric.load(self.metric, self.labels)

    def files(self) -> list[str]:
        """The files that are read."""
        code = None if self.metric is None else self.metric.rpartition(":")[0]
        return [path for path in (self.calibration, self.labels, code) if path]
