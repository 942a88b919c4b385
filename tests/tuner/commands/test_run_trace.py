"""A run as a trace: the kernels one after the other, as long as the profile says."""

from __future__ import annotations

from tests.tuner.reports.traces import assert_nested, lanes
from tunefarm.compiler.runtime.execution.profile import COPY, KernelTime, Profile, StepTime
from tunefarm.tuner.commands.run_trace import run_trace


def test_each_call_is_a_slice_in_the_order_of_the_model() -> None:
    steps = (StepTime("conv", "k1", 3e-6), StepTime(COPY, "", 1e-6), StepTime("conv", "k1", 2e-6))
    kernels = (
        KernelTime("conv", "k1", 2, 5e-6, 5 / 6, 10_000, "tuned", "7"),
        KernelTime(COPY, "", 1, 1e-6, 1 / 6, 0, "", None),
    )
    profile = Profile(20, steps, kernels, run_seconds=5.5e-6, stepwise_seconds=6e-6, outputs={})
    trace = run_trace(profile, "net", 2).to_json()
    assert_nested(trace)
    found = lanes(trace)
    (whole,), calls = (found[f"net (2 threads, medians of 20 runs)/{name}"] for name in LANES)
    assert whole["dur"] == 5.5
    assert [(call["name"], call["ts"], call["dur"]) for call in calls] == [
        ("conv", 0.0, 3.0),
        (COPY, 3.0, 1.0),
        ("conv", 4.0, 2.0),
    ]
    assert calls[0]["args"]["schedule"] == "tuned" and calls[0]["args"]["record"] == "7"


LANES = ("whole model", "kernels one by one")
