"""The rules of an ExecutableSpec: each one that is broken is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    CopyStep,
    ExecutableSpec,
    Location,
    Place,
)
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec

INPUT, OUTPUT = Location(Place.INPUT, 0), Location(Place.OUTPUT, 0)


@pytest.fixture(scope="module")
def spec() -> ExecutableSpec:
    return chain_spec(np.zeros(COUNT, np.float32))


def first_call(spec: ExecutableSpec) -> CallStep:
    step = spec.steps[0]
    assert isinstance(step, CallStep)
    return step


def with_step(step: Callable[[CallStep], CallStep | CopyStep]) -> Callable[..., ExecutableSpec]:
    return lambda spec: replace(spec, steps=(step(first_call(spec)), *spec.steps[1:]))


def with_buffer(place: Place, number: int, offset: int = 0) -> Callable[..., ExecutableSpec]:
    location = Location(place, number, offset)
    return with_step(lambda call: replace(call, buffers=(location, *call.buffers[1:])))


def test_spec_that_keeps_the_rules_is_accepted(spec: ExecutableSpec) -> None:
    verify_spec(spec)
    verify_spec(replace(spec, steps=(CopyStep(INPUT, OUTPUT, 4 * COUNT), *spec.steps)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda spec: replace(spec, inputs=spec.inputs * 2), "two inputs have the same name"),
        (lambda spec: replace(spec, outputs=spec.outputs * 2), "two outputs have the same name"),
        (lambda spec: replace(spec, objects=spec.objects[:1] * 2), "two kernels have the same"),
        (lambda spec: replace(spec, kernels=spec.kernels[1:]), "2 kernels have 1 reports"),
        (lambda spec: replace(spec, threads=0), "takes 0 threads"),
        (lambda spec: replace(spec, arena_bytes=-1), "-1 bytes of arena"),
        (lambda spec: replace(spec, arena_bytes=0), "is not within the arena|there is no arena"),
        (lambda spec: replace(spec, inputs=()), r"there is no input\[0\]"),
        (lambda spec: replace(spec, constants=()), r"there is no constant\[0\]"),
        (with_step(lambda call: replace(call, symbol="other")), "there is no such kernel"),
        (with_step(lambda call: replace(call, workspace=None)), "148 bytes of workspace"),
        (with_step(lambda call: replace(call, workspace=-64)), "is not within the arena"),
        (with_step(lambda call: replace(call, workspace=1 << 40)), "is not within the arena"),
        (with_buffer(Place.INPUT, 1), r"there is no input\[1\]"),
        (with_buffer(Place.OUTPUT, -1), r"there is no output\[-1\]"),
        (with_buffer(Place.ARENA, 1 << 40), r"there is no arena\+"),
        (with_buffer(Place.ARENA, 0, 4), r"there is no arena\+0\+4"),
        (with_buffer(Place.INPUT, 0, 4 * COUNT + 1), rf"there is no input\[0\]\+{4 * COUNT + 1}"),
        (with_buffer(Place.OUTPUT, 0, -4), r"there is no output\[0\]\+-4"),
        (with_step(lambda _: CopyStep(INPUT, OUTPUT, 4 * COUNT + 1)), "has no 149 bytes"),
        (with_step(lambda _: CopyStep(INPUT, OUTPUT, -1)), "has no -1 bytes"),
    ],
)
def test_broken_rule_is_refused(
    spec: ExecutableSpec, change: Callable[[ExecutableSpec], ExecutableSpec], reason: str
) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify_spec(change(spec))
