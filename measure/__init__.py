"""Measuring: candidates built, checked against the reference and timed in disposable processes."""
