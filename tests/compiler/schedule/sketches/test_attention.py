"""Attention's choices: keys and values that are read once are prefetched."""

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of, run_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.configs.settings import load_target

KEYS = 300
TARGETS = [
    Target.from_json(load_target(name).model_dump())
    for name in ("x86-64-v3", "znver5", "neoverse-n1")
]


def _attention(queries: int, stacks: int = 2, filled: bool = True) -> FusedKernel:
    """Of keys that a cache has, so many as a run says, or that were computed just before."""
    shapes = [f32(stacks, queries, 64), f32(stacks, KEYS, 64), f32(stacks, KEYS, 64)]
    names, attributes = ["x0", "x1", "x2"], {"scale": 0.1}
    if filled:
        shapes.append(TensorType(DType.I64, (1,)))
        names, attributes = [*names, "x3"], {**attributes, "filled": 0}
    return kernel_of(shapes, [("attention", names, attributes)])


def test_keys_and_values_of_few_queries_are_prefetched() -> None:
    kernel = _attention(7)
    for target in TARGETS:
        space = schedule_space(kernel, target)
        steps = space.schedule(space.default()).steps
        found = {step.buffer: step.copy for step in steps if isinstance(step, Prefetch)}
        assert found == {"in1": "keys", "in2": ""}  # keys where the turned ones are read


def test_keys_that_were_just_computed_are_prefetched_where_they_are_turned() -> None:
    for target in TARGETS:
        space = schedule_space(_attention(7, filled=False), target)
        steps = space.schedule(space.default()).steps
        found = {step.buffer: step.copy for step in steps if isinstance(step, Prefetch)}
        assert found == {"in1": "", "in2": ""}


def test_keys_of_many_blocks_of_queries_are_not_prefetched() -> None:
    for target in TARGETS:
        sketch = schedule_space(_attention(KEYS), target).sketches[0]
        assert "prefetch" not in {choice.name for choice in sketch.choices}


@pytest.mark.parametrize(("stacks", "queries"), [(1, 4), (2, 7), (3, 4), (4, 7), (8, 7)])
def test_two_threads_read_keys_of_few_queries_once(stacks: int, queries: int) -> None:
    """As far as the stacks are enough for both."""
    for target in TARGETS:
        space = schedule_space(_attention(7, stacks), target, threads=2)
        assert space.choices(space.default())["queries"] == queries


def test_prefetches_change_no_result() -> None:
    kernel = _attention(7)
    space = schedule_space(kernel, host_target())
    default, inputs = space.default(), inputs_for(kernel)
    inputs["in3"] = np.array([KEYS - 7])
    found = []
    for distance in (0, 1024, 4096):
        candidate = space.find(default.sketch, {**space.choices(default), "prefetch": distance})
        assert candidate is not None
        schedule = space.schedule(candidate)
        assert any(isinstance(step, Prefetch) for step in schedule.steps) == bool(distance)
        found.append(run_kernel(kernel, schedule, inputs))
    assert all(np.array_equal(found[0], other) for other in found[1:])
