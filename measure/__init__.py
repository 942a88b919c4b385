"""Measuring: candidates built, checked against the reference and timed in disposable processes."""

from measure.job import MeasureRequest, MeasureResult, Status
from measure.make_runner import create_runner
from measure.runner import Runner

__all__ = ["MeasureRequest", "MeasureResult", "Runner", "Status", "create_runner"]
