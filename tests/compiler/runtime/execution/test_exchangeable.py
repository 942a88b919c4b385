"""Kernels of several builds of one model are exchanged, and it computes the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tests.compiler.runtime.sized_graphs import rows_graph
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.exchangeable import ExchangeableBuilds
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, ExecutableSpec
from tunefarm.compiler.runtime.spec.verify_spec import verify_spec
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space, untiled_schedule
from tunefarm.compiler.target import host_target

X = np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)


def _last(kernel: FusedKernel) -> ScheduleChoice:
    space = schedule_space(kernel, host_target(), 1, "default")
    return ScheduleChoice(space.schedule(space.candidate(space.size - 1)), "tuned", "1", 1.0)


def _untiled(kernel: FusedKernel) -> ScheduleChoice:
    return ScheduleChoice(untiled_schedule(kernel, host_target()), "tuned", "2", 1.0)


@pytest.fixture(scope="module")
def builds() -> list[ExecutableSpec]:
    graph = import_model_proto(tiny_model())
    return [compile_model(graph, choose).spec for choose in (None, _last, _untiled)]


def test_every_taking_computes_the_same(builds: list[ExecutableSpec]) -> None:
    exchangeable = ExchangeableBuilds(builds)
    expected = Executable(builds[0]).run({"x": X})
    choices = [exchangeable.alternatives(kernel) for kernel in exchangeable.kernels]
    assert max(map(len, choices)) > 1, "no kernel has two schedules"
    for taken in product(*choices):
        spec = exchangeable.taking(dict(zip(exchangeable.kernels, taken, strict=True)))
        model = Executable(spec)
        objects = [builds[number].objects[place] for place, number in enumerate(taken)]
        assert list(spec.objects) == objects
        for run in (model, exchangeable.clocked(model).executable):
            np.testing.assert_allclose(run.run({"x": X})["y"], expected["y"], rtol=1e-4, atol=1e-6)


def test_all_takings_have_the_same_steps_and_entry(builds: list[ExecutableSpec]) -> None:
    exchangeable = ExchangeableBuilds(builds)
    specs = [exchangeable.taking(dict.fromkeys(exchangeable.kernels, n)) for n in range(3)]
    for spec in specs[1:]:
        assert spec.steps == specs[0].steps and spec.arena_bytes == specs[0].arena_bytes
        assert spec.entry == specs[0].entry


def test_a_workspace_has_room_for_the_largest() -> None:
    """Build 0 has none of it, so that it lies behind all values."""
    with_room = chain_spec(np.ones(COUNT, np.float32))
    steps = tuple(
        replace(step, workspace=None) if isinstance(step, CallStep) else step
        for step in with_room.steps
    )
    without = replace(
        with_room,
        steps=steps,
        kernels=tuple(replace(report, workspace_bytes=0) for report in with_room.kernels),
    )
    exchangeable = ExchangeableBuilds([without, with_room])
    spec = exchangeable.taking({"add": 1, "exp": 0})
    verify_spec(spec)
    places = {
        s.workspace for s in spec.steps if isinstance(s, CallStep) and s.workspace is not None
    }
    assert places and min(places) >= without.arena_bytes
    x = np.linspace(0, 1, COUNT, dtype=np.float32)
    np.testing.assert_allclose(Executable(spec).run({"x": x})["y"], np.exp(x + 4), rtol=1e-5)


def test_each_kernel_knows_its_steps(builds: list[ExecutableSpec]) -> None:
    exchangeable = ExchangeableBuilds([chain_spec(np.ones(COUNT, np.float32))])
    assert exchangeable.steps_of_kernels == {"add": [0, 1, 2, 3], "exp": [4]}


def test_kernels_of_one_code_are_no_alternatives(builds: list[ExecutableSpec]) -> None:
    exchangeable = ExchangeableBuilds([builds[0], builds[0], builds[1]])
    found = [exchangeable.alternatives(kernel) for kernel in exchangeable.kernels]
    assert all(numbers in ([0], [0, 2]) for numbers in found) and [0, 2] in found


def test_other_models_and_dynamic_sizes_are_refused(builds: list[ExecutableSpec]) -> None:
    chain = chain_spec(np.ones(COUNT, np.float32))
    with pytest.raises(VerifyError, match="its builds have other kernels"):
        ExchangeableBuilds([builds[0], chain])
    with pytest.raises(VerifyError, match="its builds have other kernels"):
        ExchangeableBuilds([chain, chain_spec(np.ones(COUNT, np.float32), length=5)])
    rows = compile_model(rows_graph()).spec
    with pytest.raises(VerifyError, match="its sizes are dynamic"):
        ExchangeableBuilds([rows, rows])
