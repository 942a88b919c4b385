from __future__ import annotations

import random

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, evaluate_graph, random_inputs
from tests.compiler.schedule.drawn_chains import (
    FORMS,
    chained_call,
    drawn_chain,
    drawn_products,
)
from tests.compiler.schedule.guarded_run import run_guarded, targets
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches import chain_context
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

TARGETS = targets()
KINDS = (*map(" ".join, FORMS), "products")


def check(graph: Graph, call: KernelCall, schedule: Schedule, target: Target, threads: int) -> None:
    inputs = random_inputs(graph)
    (expected,) = evaluate_graph(graph, inputs)
    values = {**graph.constants, **inputs}
    names = [buffer.name for buffer in call.kernel.inputs]
    arrays = {name: values[value] for name, value in zip(names, call.inputs, strict=True)}
    outcome = run_guarded(call.kernel, schedule, arrays, target, threads)
    assert not outcome.problem
    assert np.allclose(outcome.output, expected, rtol=1e-4, atol=1e-4)


def drawn(rng: random.Random, form: str, lanes: int) -> tuple[Graph, list[str]]:
    return drawn_products(rng) if form == "products" else drawn_chain(rng, lanes, form.split())


def check_draws(form: str, name: str, count: int, samples: int) -> None:
    """The default and some other schedules of some chains of this form."""
    target = TARGETS[name]
    rng = random.Random(f"{form} {name}")
    for _ in range(count):
        graph, between = drawn(rng, form, target.lanes(DType.F32))
        call = chained_call(graph, between)
        threads = rng.choice((1, 2))
        space = schedule_space(call.kernel, target, threads)
        assert [sketch.name for sketch in space.sketches] == ["chain"]
        candidates = [space.default(), *(space.sample(rng) for _ in range(samples))]
        for candidate in candidates:
            check(graph, call, space.schedule(candidate), target, threads)


@pytest.mark.parametrize("form", KINDS)
def test_chains_give_what_separate_kernels_give(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_context, "PARALLEL_WORK", 1)
    check_draws(form, "host", 1, 2)


@pytest.mark.parametrize("block", [3, 8, 24])
@pytest.mark.parametrize("form", ["dw pw", "pw dw pw"])
def test_chains_in_blocks_of_any_size_give_the_same(form: str, block: int) -> None:
    target, rng = TARGETS["wide"], random.Random(f"{form} {block}")
    graph, between = drawn_chain(rng, block, form.split())
    call = chained_call(graph, between)
    space = schedule_space(call.kernel, target)
    assert {sketch.name for sketch in space.sketches} <= {"chain", "chain_apart"}
    check(graph, call, space.schedule(space.default()), target, 1)


def test_part_that_reads_half_a_tile_of_vectors_is_computed_apart() -> None:
    target = TARGETS["narrow"]
    block = 2 * target.lanes(DType.F32)
    maker = GraphMaker()
    x = maker.input(1, 1, 3, 5, block)
    first = maker.node("conv", x, maker.weights(block, block, 1, 1), layout="NCHWc")
    y = maker.node("conv", first, maker.weights(block, block - 1, 1, 1), layout="NCHWc")
    graph = maker.graph(y)
    call = chained_call(graph, [first])
    space = schedule_space(call.kernel, target)
    assert [sketch.name for sketch in space.sketches] == ["chain_apart"]
    check(graph, call, space.schedule(space.default()), target, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("name", TARGETS)
def test_many_chains_give_what_separate_kernels_give(
    form: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_context, "PARALLEL_WORK", 1)
    check_draws(form, name, 10, 5)


def test_blocks_of_rows_that_divide_the_rows_are_computed_once() -> None:
    graph, between = drawn_chain(random.Random(1), 16, ("dw", "pw"))
    call = chained_call(graph, between)
    space = schedule_space(call.kernel, TARGETS["wide"])
    (sketch,) = space.sketches
    rows = next(choice.values for choice in sketch.choices if choice.name == "rows")
    extent = call.kernel.output.shape[2]
    assert set(rows) >= {n for n in range(1, extent + 1) if extent % n == 0}
