"""What a run at a small size executes does not grow with the bound of the size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.bounded_models import KINDS, SOURCES, bounded_model
from tests.compiler.graph.graph_helpers import values_of_program
from tests.compiler.loops.executed import executed
from tests.targets import target_named
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall, KernelProgram
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.types.signature import SIZES
from tunefarm.compiler.types.sizes import Dimension, value_of
from tunefarm.compiler.types.tensor_type import Array

SIZE, NEAR, FAR = 9, 96, 768
TARGET = target_named("x86-64-v3")
GROWTH = 2  # as tiles of long rows may be larger; a loop to the bound executes 8 times as much
OF_ALL = {"condition": 4 * FAR}
"""Statements for elements of inputs that are as long as the bound says, by source."""


def padded(graph: Graph, feed: dict[str, Array]) -> dict[str, Array]:
    """The inputs as the program has them: at their bounds, with its sizes."""
    found: dict[str, Array] = {}
    for name, array in feed.items():
        place = np.full(graph.types[name].shape, 1, array.dtype)
        place[tuple(map(slice, array.shape))] = array
        found[name] = place
    sizes: tuple[Dimension, ...] = graph.signature.sizes
    if sizes:
        found[SIZES] = np.array([value_of(size, {"n": SIZE}) for size in sizes], np.int64)
    return found


def statements(program: KernelProgram, values: dict[str, Array]) -> dict[str, int]:
    """What each kernel executes, by its result."""
    found = {}
    for call in program.calls:
        if not isinstance(call, KernelCall):
            continue
        nest = lower(call.kernel, default_schedule(call.kernel, TARGET))
        own = zip(call.kernel.inputs, call.inputs, strict=True)
        sizes = {buffer.name: values[name] for buffer, name in own}
        found[f"{call.output} = {call.kernel.name}"] = executed(nest, sizes)
    return found


def work(source: str, kind: str, bound: int) -> dict[str, int]:
    _, graph, feed = bounded_model(source, kind, bound)
    program = kernels_of(graph, TARGET)
    values = values_of_program(program, padded(graph, feed(SIZE)))
    return statements(program, values)


def check(source: str, kind: str) -> None:
    near, far = work(source, kind, NEAR), work(source, kind, FAR)
    allowed = GROWTH * sum(near.values()) + OF_ALL.get(source, 0)
    assert sum(far.values()) <= allowed, f"{near}\n{far}"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("input", "strided conv"),
        ("input", "transposed conv by 2"),
        ("durations", "vocoder"),
        ("durations", "attention"),
        ("shape", "softmax"),
        ("condition", "product"),
    ],
)
def test_work_at_a_size_does_not_grow_with_its_bound(source: str, kind: str) -> None:
    check(source, kind)


@pytest.mark.nightly
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_work_grows_with_the_bound(source: str, kind: str) -> None:
    check(source, kind)


def test_loops_that_have_no_limit_are_counted_to_the_bound() -> None:
    """What the tests above would find."""
    _, graph, feed = bounded_model("input", "conv", FAR)
    program = kernels_of(graph, TARGET)
    values = values_of_program(program, padded(graph, feed(SIZE)))
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    unlimited = tuple(replace(call, kernel=replace(call.kernel, limits=())) for call in calls)
    limited = sum(statements(program, values).values())
    assert sum(statements(replace(program, calls=unlimited), values).values()) > 8 * limited
