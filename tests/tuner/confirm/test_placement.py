"""Whether where its buffers lie alone moves a kernel: the winner against itself elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.hand_kernels import COUNT, chain_spec
from tests.tuner.setting import OTHER, TILES, Setting, SyntheticRunner
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.runtime.spec.executable_spec import (
    CallStep,
    ExecutableSpec,
    Location,
    Place,
    aligned,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.compare import LogRatio
from tunefarm.measure.measurement import MeasureRequest, MeasureResult, Status
from tunefarm.measure.placement import PERIOD, Placement, buffer_sizes
from tunefarm.tuner.confirm.placement import (
    PlacementCheck,
    cache_states,
    model_placements,
    moved_lines,
    moves,
    two_placements,
)
from tunefarm.tuner.search.budget import Limits
from tunefarm.tuner.search.make_tasks import distinct_kernels


class PlacedRunner(SyntheticRunner):
    """The kernel takes `slower` times as long at the second placement of a request."""

    slower = 1.0
    status = Status.OK

    def answer(self, request: MeasureRequest) -> MeasureResult:
        found = super().answer(request)
        if len(request.placements) < 2:
            return found
        (rival,) = found.rivals
        slower = tuple(self.slower * seconds for seconds in rival)
        return replace(found, rivals=(slower,), status=self.status)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path / "tuning.db")
    made.runner = PlacedRunner()
    made.run(Limits(), TILES, OTHER)
    yield made
    made.store.close()


def test_outputs_are_idle_for_what_is_touched_between_two_uses_of_their_memory() -> None:
    """x + w -> a, a + w -> b, exp b -> a, exp a -> y, run after run."""
    value = 1 << 16
    array = np.zeros(value // 4, np.float32)
    type = TensorType(DType.F32, array.shape)
    a, b = (Location(Place.ARENA, number) for number in (0, value))
    x, w, y = (Location(place, 0) for place in (Place.INPUT, Place.CONSTANT, Place.OUTPUT))
    steps = (
        CallStep("kernel_add", (x, w, a), None),  # a has just been read
        CallStep("kernel_add", (a, w, b), None),  # b was used two steps before: all is touched
        CallStep("kernel_exp", (b, a), None),  # a has just been read
        CallStep("kernel_exp", (a, y), None),  # nothing else of the model uses y
    )
    spec = replace(
        chain_spec(np.ones(COUNT, np.float32)),
        steps=steps,
        arena_bytes=2 * value,
        constants=(array,),
        inputs=(("x", type),),
        outputs=(("y", type),),
        operands=((type,) * 3, (type,) * 2),
    )
    whole = 5 * value
    state = {"model_bytes": whole, "idle_bytes": whole // 2}
    assert cache_states(spec) == {"add": state, "exp": state}
    assert cache_states(replace(spec, steps=steps[:2])) == {
        "add": {"model_bytes": whole, "idle_bytes": (0 + 3 * value) // 2},
    }
    assert cache_states(replace(spec, operands=())) == {}, "of files from before they were kept"


def check(setting: Setting, *, late: bool = False, stopped: bool = False) -> PlacementCheck:
    settled = setting.confirm().settled
    assert len(settled) == 2
    made = PlacementCheck(setting.store, job=setting.job, seed=0)
    if stopped:
        made.stop()
    made.run(settled, setting.runner, {}, lambda seconds: late)
    return made


def test_each_winner_meets_itself_at_two_placements(setting: Setting) -> None:
    found = check(setting)
    requests = [r for r in setting.runner.requests if len(r.placements) == 2]
    assert [request.rivals for request in requests] == [(r.schedule,) for r in requests]
    assert all(len({tuple(place) for place in r.placements}) == 2 for r in requests)
    costs = {task.key.workload: task.progress.cost for task in setting.made}
    asked = [costs[request.workload_key] for request in requests]
    assert asked == sorted(costs.values(), reverse=True)
    assert set(found.ratios) == {task.key for task in setting.made}


def test_a_kernel_that_moves_is_named_and_others_are_not(setting: Setting) -> None:
    assert isinstance(setting.runner, PlacedRunner)
    setting.runner.slower = 1.08
    ratios = check(setting).ratios
    first, second = setting.made
    steady = LogRatio(0.02, 0.002, 28)
    tasks = [
        replace(first.status(), placement=ratios[first.key]),
        replace(second.status(), placement=steady),
        second.status(),
    ]
    name = f"{first.kernel.name} ({first.key.workload[:8]})"
    assert moved_lines(tasks) == [f"where its buffers lie alone moves {name} by 8 %"]


@pytest.mark.parametrize(
    ("mean", "deviation", "moved"),
    [
        (0.06, 0.01, True),
        (-0.06, 0.01, True),
        (0.06, 0.02, False),
        (0.025, 0.001, False),
        (-0.025, 0.001, False),
    ],
)
def test_a_move_is_beyond_doubt_above_three_per_cent(
    mean: float, deviation: float, moved: bool
) -> None:
    assert moves(LogRatio(mean, deviation, 28)) is moved


@pytest.mark.parametrize("status", [Status.SCATTERED, Status.CRASHED])
def test_what_fails_or_scatters_is_left_out(setting: Setting, status: Status) -> None:
    assert isinstance(setting.runner, PlacedRunner)
    setting.runner.status = status
    assert check(setting).ratios == {}


@pytest.mark.parametrize("reason", ["late", "stopped"])
def test_nothing_is_measured_when_there_is_no_time(setting: Setting, reason: str) -> None:
    found = check(setting, **{reason: True})
    assert found.ratios == {}
    assert all(len(request.placements) < 2 for request in setting.runner.requests)


def test_the_other_placement_is_that_of_another_call_or_all_moved(setting: Setting) -> None:
    task = setting.made[0]
    sizes = buffer_sizes(task.kernel)
    packed, moved = two_placements(task)
    assert packed == Placement.packed(sizes)
    base, after = packed.spans(sizes, 100), moved.spans(sizes, 100)
    apart = [b.begin - a.begin for a, b in zip(base[:-1], after[:-1], strict=True)]
    assert len(set(apart)) == len(sizes) and all(distance % 128 for distance in apart[::2])
    task.placements = (moved, packed)
    assert two_placements(task) == (moved, packed)


def layers(count: int) -> Graph:
    """Dense layers of one size, each followed by a softmax."""
    graph = GraphMaker()
    value = graph.input(24, 40)
    for _ in range(count):
        value = graph.node("softmax", graph.node("matmul", value, graph.weights(40, 40)), axis=1)
    return graph.graph(value)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_model(layers(4))


def placements_of(compiled: Compiled) -> dict[str, tuple[Placement, ...]]:
    kernels = {key: kernel for key, (kernel, _) in distinct_kernels(compiled.program).items()}
    return model_placements(compiled.spec, kernels)


def calls_of(spec: ExecutableSpec, key: str) -> list[CallStep]:
    reports = zip(spec.objects, spec.kernels, strict=True)
    symbols = {part.symbol: report.key for part, report in reports}
    calls = [step for step in spec.steps if isinstance(step, CallStep)]
    return [call for call in calls if symbols[call.symbol] == key]


def test_every_kernel_has_placements_that_fit_its_buffers(compiled: Compiled) -> None:
    found = placements_of(compiled)
    assert set(found) == {report.key for report in compiled.spec.kernels}
    for report in compiled.spec.kernels:
        kernel, _ = distinct_kernels(compiled.program)[report.key]
        assert found[report.key]
        for placement in found[report.key]:
            placement.spans(buffer_sizes(kernel), report.workspace_bytes)


def test_buffers_lie_to_each_other_as_in_the_arena(compiled: Compiled) -> None:
    for key, placements in placements_of(compiled).items():
        distances = {(at.offsets[1] - at.offsets[0]) % PERIOD for at in placements}
        for call in calls_of(compiled.spec, key):
            begin, end = call.buffers[0], call.buffers[-1]
            if begin.place is end.place is Place.ARENA:
                assert (end.number - begin.number) % PERIOD in distances


def test_callers_buffers_lie_after_the_arena(compiled: Compiled) -> None:
    spec = compiled.spec
    (first,) = (step for step in spec.steps[:1] if isinstance(step, CallStep))
    assert first.buffers[0].place is Place.INPUT and first.buffers[-1].place is Place.ARENA
    key = next(r.key for r in spec.kernels if calls_of(spec, r.key)[0] is first)
    source, output = placements_of(compiled)[key][0].offsets[:2]
    assert (source - output - aligned(spec.arena_bytes) + first.buffers[-1].number) % PERIOD == 0
    assert source > output


def test_calls_with_buffers_elsewhere_are_further_placements(compiled: Compiled) -> None:
    counts = {key: len(placements) for key, placements in placements_of(compiled).items()}
    assert all(2 <= count <= 4 for count in counts.values()), counts


def test_every_request_of_a_job_has_the_placement_of_the_first_call(tmp_path: Path) -> None:
    first, second = Placement((0, 64, 128)), Placement((0, 128, 64))

    setting = Setting(tmp_path / "tuning.db")
    setting.placements = (first, second)
    setting.run(Limits(trials=8), TILES)
    searched = len(setting.runner.requests)
    setting.confirm()
    assert len(setting.runner.requests) > searched > 0
    assert all(request.placements == (first.to_json(),) for request in setting.runner.requests)
    setting.store.close()


@pytest.mark.parametrize("returned", [True, False])
def test_parts_of_values_and_of_outputs_are_placed_at_cache_lines(returned: bool) -> None:
    graph = GraphMaker()
    value = graph.input(3, 5)
    parts = [value]
    for _ in range(3):
        parts.append(graph.node("matmul", parts[-1], graph.weights(5, 5)))
    joined = graph.node("concat", *parts[1:], axis=0)  # each 60 bytes behind the other
    if not returned:
        joined = graph.node("matmul", joined, graph.weights(5, 5))
    compiled = compile_model(graph.graph(joined))
    found = placements_of(compiled)
    calls = [step for step in compiled.spec.steps if isinstance(step, CallStep)]
    places = [location for call in calls for location in call.buffers]
    assert any((at.number if at.place is Place.ARENA else at.offset) % 64 for at in places)
    for key, (kernel, _) in distinct_kernels(compiled.program).items():
        assert found[key]
        for placement in found[key]:
            placement.spans(buffer_sizes(kernel), 0)
