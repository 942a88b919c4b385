"""Profiles: every step timed inside a run of the model; no time is asserted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.compiler.runtime.hand_kernels import (
    ADD_IR,
    COUNT,
    VECTOR,
    add_kernel,
    call,
    chain_spec,
    compile_ir,
    make_program,
    make_spec,
)
from tests.compiler.runtime.sized_graphs import rows_graph
from tests.end_to_end.tiny_model import tiny_model
from tunefarm import compiler
from tunefarm.compiler.errors import InputError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import ViewCall
from tunefarm.compiler.runtime.entry.entry import clock_ir
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.execution.loaded_program import LoadedProgram
from tunefarm.compiler.runtime.execution.profile import COPY, Clocked, step_seconds, without_waits
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec

WEIGHT = np.linspace(-1, 1, COUNT, dtype=np.float32)


@pytest.fixture(scope="module")
def spec() -> ExecutableSpec:
    return chain_spec(WEIGHT)


def ramp() -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.linspace(0, 1, COUNT, dtype=np.float32)}


def test_steps_are_those_of_the_model_in_order(spec: ExecutableSpec) -> None:
    profile = Executable(spec).profile(ramp(), repeat=3)
    assert [step.key for step in profile.steps] == ["add", "add", "add", "add", "exp"]
    assert profile.repeat == 3
    assert len(profile.samples) == 3 and profile.run_seconds > 0
    assert all(step.seconds > 0 for step in profile.steps)
    assert profile.entry_seconds > 0 and profile.call_seconds >= 0
    assert profile.seconds == profile.stepwise_seconds == sum(s.seconds for s in profile.steps)


def test_ticks_of_all_steps_are_those_of_the_call(spec: ExecutableSpec) -> None:
    program = LoadedProgram(spec)
    clocked = Clocked(Executable(spec, loaded=[program]), program)
    before = clocked.now()
    clocked.executable.run(ramp())
    after = clocked.now()
    assert len(clocked.ticks) == len(spec.steps) + 1
    assert np.all(clocked.ticks[:-1] > 0)
    assert 0 < clocked.ticks.sum() < after - before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_runs_the_code_that_a_file_holds(tmp_path: Path, threads: int) -> None:
    compiler.build(import_model_proto(tiny_model()), threads=threads).save(tmp_path / "m.tuned")
    executable = compiler.load(tmp_path / "m.tuned")
    x = np.random.default_rng(2).standard_normal((1, 3, 12, 12)).astype(np.float32)
    profile = executable.profile({"x": x}, repeat=4)
    np.testing.assert_array_equal(profile.outputs["y"], executable.run({"x": x})["y"])
    assert all(row.seconds > 0 for row in profile.kernels)


@pytest.mark.parametrize(
    ("triple", "instruction"),
    [("x86_64-unknown-linux-gnu", "rdtsc"), ("aarch64-unknown-linux-gnu", "CNTVCT_EL0")],
)
def test_each_family_of_cpus_reads_a_counter(triple: str, instruction: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    ports = ", ".join(["ptr"] * 5)
    text = f"declare void @entry({ports})\n{clock_ir(triple, 3, 'entry')}"
    machine = llvm.Target.from_triple(triple).create_target_machine()
    assembly = machine.emit_assembly(llvm.parse_assembly(text))
    assert assembly.count(f"{instruction}\n") == 3


def test_steps_add_up_to_a_run_without_its_waits() -> None:
    rounds = np.array([[1.0, 3.0], [9.0, 3.0], [1.0, 4.0]])  # the second waited in its first step
    np.testing.assert_allclose(step_seconds(rounds, [0, 7, 0]), [1.25, 3.75])
    np.testing.assert_array_equal(step_seconds(rounds[:1], [0]), rounds[0])
    np.testing.assert_array_equal(step_seconds(rounds[:1], [5]), [0, 0])


def test_a_step_that_waits_in_most_rounds_is_not_taken_for_slow() -> None:
    rounds = np.array([[8.0, 3.0], [9.0, 3.0], [1.0, 3.0], [7.0, 3.0]])
    waits = [7.0, 8.0, 0.0, 6.0]
    np.testing.assert_allclose(step_seconds(rounds, waits), [1.0, 3.0])
    np.testing.assert_allclose(without_waits(rounds, waits), [[1.0, 3.0]] * 4)
    np.testing.assert_array_equal(rounds[0], [8.0, 3.0])


def test_a_step_that_waits_in_all_rounds_makes_no_short_one_faster() -> None:
    rounds = np.array([[0.001, 0.9, 0.5], [0.001, 1.0, 0.5], [0.001, 1.1, 0.5]])
    seconds = step_seconds(rounds, [0.6, 0.7, 0.8])
    assert seconds[0] == 0.001
    assert seconds.sum() == pytest.approx(0.801)
    assert 0.4 < seconds[1] < 0.6


def test_a_wait_is_taken_from_several_steps_and_no_more_than_there_is() -> None:
    rounds = np.array([[5.0, 4.0], [1.0, 3.0]])
    np.testing.assert_allclose(without_waits(rounds, [4.5, 0.0])[0], [1.0, 3.5])
    np.testing.assert_allclose(without_waits(rounds, [99.0, 0.0])[0], [1.0, 3.0])


def test_kernels_sum_up_their_occurrences_and_tell_their_schedule(spec: ExecutableSpec) -> None:
    exp = replace(spec.kernels[1], schedule_source="tuned", record_id="r7", flops=10)
    profile = Executable(replace(spec, kernels=(spec.kernels[0], exp))).profile(ramp(), repeat=5)
    rows = {row.key: row for row in profile.kernels}
    assert set(rows) == {"add", "exp"}
    assert (rows["add"].occurrences, rows["exp"].occurrences) == (4, 1)
    assert (rows["add"].flops, rows["exp"].flops) == (4 * COUNT, 10)
    assert (rows["add"].schedule_source, rows["add"].record_id) == ("default", None)
    assert (rows["exp"].schedule_source, rows["exp"].record_id) == ("tuned", "r7")
    for key, row in rows.items():
        seconds = [step.seconds for step in profile.steps if step.key == key]
        assert row.seconds == pytest.approx(sum(seconds))
        assert row.gflops * row.seconds == pytest.approx(row.flops / 1e9 if row.seconds else 0)
    assert sum(row.share for row in profile.kernels) == pytest.approx(1.0)
    assert all(above.seconds >= below.seconds for above, below in pairwise(profile.kernels))


def test_a_profile_returns_what_a_run_returns(tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    executable = compiler.build(tmp_path / "tiny.onnx")
    x = np.random.default_rng(2).standard_normal((1, 3, 12, 12)).astype(np.float32)
    profile = executable.profile({"x": x}, repeat=2)
    np.testing.assert_array_equal(profile.outputs["y"], executable.run({"x": x})["y"])
    assert all(report.flops > 0 for report in executable.kernels)
    conv = next(report for report in executable.kernels if "conv" in report.name)
    products = 2 * 16 * 12 * 12 * 3 * 3 * 3  # a multiplication and an addition of each
    assert products <= conv.flops < 1.1 * products


def test_copies_between_kernels_are_a_row_of_their_own() -> None:
    program = make_program(
        ["x"],
        ["sum", "x2", "w2"],
        [
            call(add_kernel(COUNT), "add", ("x", "w"), "sum"),
            ViewCall("x", "x2"),
            ViewCall("w", "w2"),
        ],
        dict.fromkeys(("x", "w", "sum", "x2", "w2"), VECTOR),
        {"w": WEIGHT},
    )
    compiled = {"add": compile_ir(ADD_IR, "k", COUNT, workspace_bytes=4 * COUNT)}
    profile = Executable(make_spec(program, compiled)).profile(ramp(), repeat=2)
    (copies,) = (row for row in profile.kernels if row.name == COPY)
    assert (copies.occurrences, copies.flops, copies.gflops) == (2, 0, 0.0)
    assert [step.name for step in profile.steps].count(COPY) == 2
    np.testing.assert_array_equal(profile.outputs["sum"], ramp()["x"] + WEIGHT)
    np.testing.assert_array_equal(profile.outputs["x2"], ramp()["x"])
    np.testing.assert_array_equal(profile.outputs["w2"], WEIGHT)


def test_a_model_without_steps_has_an_empty_profile() -> None:
    program = make_program([], [], [], {})
    profile = Executable(make_spec(program, {})).profile({}, repeat=1)
    assert (profile.steps, profile.kernels, profile.seconds) == ((), (), 0)


def test_profile_refuses_what_run_refuses(spec: ExecutableSpec) -> None:
    executable = Executable(spec)
    with pytest.raises(InputError, match="no input 'z'"):
        executable.profile({"z": np.zeros(COUNT, np.float32)})
    with pytest.raises(ValueError, match="at least 1"):
        executable.profile(ramp(), repeat=0)


def test_operations_are_told_at_the_sizes_that_they_were_counted_for() -> None:
    executable = compiler.build(rows_graph())
    greatest = executable.profile(executable.empty_inputs({"batch": 4, "length": 7}), 1)
    assert sum(row.flops for row in greatest.kernels) > 0
    smaller = executable.profile(executable.empty_inputs({"batch": 4, "length": 6}), 1)
    assert [row.flops for row in smaller.kernels] == [0] * len(smaller.kernels)
