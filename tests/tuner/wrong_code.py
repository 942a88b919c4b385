"""A build step whose machine code is wrong, whatever the schedule: a compiler with a bug."""

from __future__ import annotations

from dataclasses import replace

from tests.measure.fault_kernels import compile_fault
from tunefarm.compiler.target import Target
from tunefarm.measure.measurement import MeasureRequest
from tunefarm.measure.worker.build_candidate import BuiltCandidate

COMPILE_WRONG = "tests.tuner.wrong_code:compile_wrong"
COMPILE_CRASHING = "tests.tuner.wrong_code:compile_crashing"


def compile_wrong(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """Code for `fault_kernels.make_kernel` that multiplies by three instead of two."""
    return compile_fault(replace(request, schedule=[["fault", "wrong"]]), target)


def compile_crashing(request: MeasureRequest, target: Target) -> BuiltCandidate:
    """Code that writes to address 0."""
    return compile_fault(replace(request, schedule=[["fault", "segfault"]]), target)
