"""Builds are one build where what runs is the same to the byte, whatever records they are of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact.seal import code_digest
from tunefarm.compiler.runtime.execution.executable import Executable, load
from tunefarm.compiler.runtime.spec.buffers import aligned_empty
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.compiler.schedule.schedule import ChooseSchedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_model_proto(tiny_model())


def kept(kernel: FusedKernel) -> ScheduleChoice:
    """The default schedule, from a record."""
    space = schedule_space(kernel, host_target())
    return ScheduleChoice(space.schedule(space.default()), TUNED, "7", 1e-6)


def another(kernel: FusedKernel) -> ScheduleChoice:
    """A schedule that is not the default one, if there is one."""
    space = schedule_space(kernel, host_target())
    default = space.number(space.default())
    other = space.candidate((default + 1) % space.size)
    return replace(kept(kernel), schedule=space.schedule(other))


def built(graph: Graph, choose: ChooseSchedule | None = None) -> ExecutableSpec:
    return compile_model(graph, choose, target=host_target()).spec


def test_a_recorded_default_schedule_is_the_untuned_build(graph: Graph) -> None:
    untuned, recorded = built(graph), built(graph, kept)
    assert {kernel.schedule_source for kernel in recorded.kernels} == {TUNED}
    assert recorded.entry != untuned.entry  # its seal names the records
    assert code_digest([recorded]) == code_digest([untuned])


def test_another_schedule_is_another_build(graph: Graph) -> None:
    assert code_digest([built(graph, another)]) != code_digest([built(graph)])


def test_what_runs_decides_and_what_is_said_of_it_does_not(graph: Graph) -> None:
    spec = built(graph)
    digest = code_digest([spec])
    said = replace(spec, name="another", numerics="strict", arena_lower_bound=0, kernels=())
    assert code_digest([said]) == digest
    constant = next(i for i, c in enumerate(spec.constants) if c.size)
    others = {
        "code": replace(spec, digests=("0" * 64, *spec.digests[1:])),
        "constants": replace(spec, digests=(*spec.digests[:-1], "0" * 64)),
        "types": replace(
            spec,
            constants=tuple(c[:-1] if i == constant else c for i, c in enumerate(spec.constants)),
        ),
        "steps": replace(spec, steps=spec.steps[::-1]),
        "arena": replace(spec, arena_bytes=spec.arena_bytes + 64),
        "threads": replace(spec, threads=spec.threads + 1),
    }
    digests = {name: code_digest([other]) for name, other in others.items()}
    assert digest not in digests.values()
    assert len(set(digests.values())) == len(others)
    assert code_digest([spec, spec]) != digest


def moved(constant: Array) -> Array:
    copy = aligned_empty(constant.shape, constant.dtype)
    copy[...] = constant
    return copy


def test_a_file_holds_the_build_that_was_saved(graph: Graph, tmp_path: Path) -> None:
    model = Executable(built(graph, kept))
    model.save(tmp_path / "model.tuned")
    assert load(tmp_path / "model.tuned").code_digest == model.code_digest
    assert model.placed_anew(moved).code_digest == model.code_digest
