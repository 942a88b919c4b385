"""The whole pipeline: ONNX file in, right outputs out, and what the build says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.onnx_models import node
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler import kernel_stages
from tunefarm.compiler.content_cache import ContentCache
from tunefarm.compiler.emit import llvm_text
from tunefarm.compiler.errors import ImportModelError, ScheduleError, SettingsError, VerifyError
from tunefarm.compiler.frontend.import_onnx import import_model_proto, import_onnx
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.llvm.compile_kernel import EmittedKernel, emit_loops
from tunefarm.compiler.llvm.object_cache import ObjectCache
from tunefarm.compiler.loops.ir import LoopNest
from tunefarm.compiler.pipeline import STAGES, compile_model, kernels_of
from tunefarm.compiler.runtime.artefact import write_artefact
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.schedule import spaces
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule, ScheduleChoice
from tunefarm.compiler.schedule.sketches.row_wise import row_wise_sketches
from tunefarm.compiler.schedule.space import Sketch
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType

Vector = npt.NDArray[np.float32]


def random_array(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Vector:
    array: Vector = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    return array


def write_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Vector],
    shape: list[int],
    result: list[int],
) -> Path:
    """A model from "x" to "y" with float weights."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def conv_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal residual convolutions, a strided one, a pool, a flatten and a matmul."""
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Vector:
        return random_array(rng, shape, float(np.prod(shape[1:])) ** -0.5)

    nodes = [
        node("Conv", "x w0 b0", "c0", name="stem", pads=[1, 1, 1, 1]),
        node("Relu", "c0", "r0"),
        node("Conv", "r0 w1 b1", "c1", name="block1", pads=[1, 1, 1, 1]),
        node("Add", "c1 r0", "a1"),
        node("Relu", "a1", "r1"),
        node("Conv", "r1 w2 b2", "c2", name="block2", pads=[1, 1, 1, 1]),
        node("Add", "c2 r1", "a2"),
        node("Relu", "a2", "r2"),
        node("Conv", "r2 w3", "c3", name="down", strides=[2, 2]),
        node("MaxPool", "c3", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f w4 b4", name="head", transB=1),
    ]
    weights = {
        "w0": weight(16, 3, 3, 3),
        "b0": weight(16),
        "w1": weight(16, 16, 3, 3),
        "b1": weight(16),
        "w2": weight(16, 16, 3, 3),
        "b2": weight(16),
        "w3": weight(20, 16, 1, 1),
        "w4": weight(7, 20 * 3 * 3),
        "b4": weight(7),
    }
    path = tmp_path_factory.mktemp("models") / "conv_net.onnx"
    return write_model(path, nodes, weights, [1, 3, 13, 13], [1, 7])


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers and a softmax."""
    rng = np.random.default_rng(4)
    nodes = [
        node("MatMul", "x w0", "m0", name="first"),
        node("Add", "m0 b0", "a0"),
        node("Relu", "a0", "r0"),
        node("MatMul", "r0 w1", "m1", name="second"),
        node("Softmax", "m1", axis=-1),
    ]
    weights = {
        "w0": random_array(rng, (31, 64), 1 / 6),
        "b0": random_array(rng, (64,), 1),
        "w1": random_array(rng, (64, 10), 1 / 8),
    }
    return write_model(
        tmp_path_factory.mktemp("models") / "mlp.onnx", nodes, weights, [5, 31], [5, 10]
    )


def assert_equals_reference(executable: Executable, path: Path) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        inputs = {
            name: rng.standard_normal(type.shape).astype(np.float32)
            for name, type in executable.inputs.items()
        }
        assert_agrees(executable.run, path, inputs, rtol=1e-3, atol=0, of_largest=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", ["conv_net", "mlp"])
def test_built_and_loaded_model_equals_onnxruntime(
    model: str, threads: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if threads > 1 and not make_runtime(2)[1]:
        pytest.skip("no pool on this machine")
    path: Path = request.getfixturevalue(model)
    executable = compiler.build(path, threads=threads)
    assert executable.threads == threads
    assert_equals_reference(executable, path)
    executable.save(tmp_path / "model.tuned")
    assert_equals_reference(compiler.load(tmp_path / "model.tuned"), path)


@pytest.mark.parametrize("threads", [1, 2])
def test_small_resnet18_equals_onnxruntime(threads: int, tmp_path: Path) -> None:
    if threads > 1 and not make_runtime(2)[1]:
        pytest.skip("no pool on this machine")
    model = build_model("resnet18", size=Size(image=33, width=0.25, classes=10))
    path = tmp_path / "resnet18.onnx"
    onnx.save(model, path)
    assert_equals_reference(compiler.build(path, threads=threads), path)


def test_input_that_is_an_output_too_keeps_its_name() -> None:
    graph = Graph("same", ("x",), ("x",), (), {"x": TensorType(DType.F32, (3,))}, {})
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(compiler.build(graph).run({"x": x})["x"], x)


def test_equal_kernels_are_compiled_once_and_counted(conv_net: Path) -> None:
    executable = compiler.build(conv_net)
    block = next(report for report in executable.kernels if "block1" in report.sources)
    assert block.occurrences == 2
    assert "block2" in block.sources
    assert len({report.key for report in executable.kernels}) == len(executable.kernels)
    assert len(executable.spec.objects) == len(executable.kernels)


def test_default_schedules_are_reported_as_default(mlp: Path) -> None:
    executable = compiler.build(mlp)
    assert {report.schedule_source for report in executable.kernels} == {"default"}
    assert {report.note for report in executable.kernels} == {""}


def test_schedule_is_asked_for_once_per_distinct_kernel(conv_net: Path) -> None:
    program = kernels_of(conv_net)
    asked: list[FusedKernel] = []

    def choose(kernel: FusedKernel) -> None:
        asked.append(kernel)

    compile_model(conv_net, choose)
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    distinct = {call.key: call.kernel for call in calls}
    assert len(distinct) < len(calls)
    assert asked == list(distinct.values())


def test_chosen_schedule_and_its_record_are_reported(mlp: Path) -> None:
    def choose(kernel: FusedKernel) -> ScheduleChoice:
        schedule = default_schedule(kernel, host_target(), 1)
        return ScheduleChoice(schedule, "tuned", record_id="r7", latency=1e-5)

    executable = compiler.build(mlp, choose)
    for report in executable.kernels:
        assert (report.schedule_source, report.record_id) == ("tuned", "r7")
        assert (report.latency, report.note) == (1e-5, "")
    assert_equals_reference(executable, mlp)


def test_schedule_that_does_not_fit_gives_way_to_the_default_and_is_reported(mlp: Path) -> None:
    misfit = Schedule((Vectorize("no_such_stage", "no_such_axis"),))

    def choose(kernel: FusedKernel) -> ScheduleChoice:
        return ScheduleChoice(misfit, "relative", record_id="r9", latency=1.0)

    executable = compiler.build(mlp, choose)
    for report in executable.kernels:
        assert (report.schedule_source, report.record_id, report.latency) == ("default", None, None)
        assert report.note.startswith("the relative schedule of record r9 does not fit: ")
    assert_equals_reference(executable, mlp)


def _misfits(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """Row-wise sketches that are for another kernel."""
    misfit = Schedule((Vectorize("no_such_stage", "no_such_axis"),))
    real = row_wise_sketches(kernel, target, threads)
    return [replace(sketch, build=lambda _: misfit) for sketch in real]


def _refuses(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    raise ScheduleError("no rows here")


@pytest.mark.parametrize("sketches", [_misfits, _refuses])
def test_kernel_without_a_schedule_that_fits_runs_as_scalar_loops_and_is_reported(
    sketches: Callable[..., list[Sketch]], mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = import_onnx(mlp)
    expected = {report.name for report in compiler.build(graph).kernels}
    monkeypatch.setattr(spaces, "REDUCING", ())
    monkeypatch.setattr(spaces, "MOVING", (sketches,))
    compiled = compile_model(graph, keep_llvm=True)
    spec = compiled.spec
    assert {report.name for report in spec.kernels} == expected
    for report in spec.kernels:
        assert (report.schedule_source, report.record_id) == ("naive", None)
        assert report.note.startswith("the default schedule does not fit: ")
    assert_equals_reference(Executable(spec), mlp)
    assert "define" in llvm_text(compiled)


def test_compiled_says_what_each_kernel_was_chosen_and_built_with(conv_net: Path) -> None:
    """One that was chosen and does not fit gives way to the default one."""
    default = compile_model(conv_net)
    first, second, *rest = default.schedules.values()
    assert first.chosen is None
    given = {
        first.kernel: ScheduleChoice(first.used.schedule, "tuned", "r1"),
        second.kernel: ScheduleChoice(first.used.schedule, "tuned", "r2"),
    }
    compiled = compile_model(conv_net, lambda kernel: given.get(kernel))
    fits, does_not, *others = compiled.schedules.values()
    assert (fits.used, fits.note) == (given[first.kernel], "")
    assert does_not.chosen == given[second.kernel]
    assert does_not.used == second.used
    assert does_not.note.startswith("the tuned schedule of record r2 does not fit: ")
    assert others == rest
    assert list(compiled.schedules) == [report.key for report in compiled.spec.kernels]
    assert compiled.kernels == {
        key: calls[0].kernel for key, calls in compiled.program.kernel_calls().items()
    }


def test_llvm_is_kept_where_it_is_asked_for_though_code_is_known(mlp: Path, tmp_path: Path) -> None:
    cache = ObjectCache(ContentCache(tmp_path))
    plain = compile_model(mlp, cache=cache)
    assert plain.llvm == {}
    made = cache.misses
    kept = compile_model(mlp, cache=cache, keep_llvm=True)
    assert cache.misses == made  # no code is made again
    assert kept.spec.objects == plain.spec.objects
    assert kept.llvm.keys() == kept.schedules.keys()
    for key, text in kept.llvm.items():
        assert f"define void @kernel_{key}(" in text


def _out_of_range(nest: LoopNest) -> LoopNest:
    """The nest, with one element too few of output."""
    *rows, last = nest.output.shape
    return replace(nest, output=replace(nest.output, shape=(*rows, last - 1)))


def test_loops_that_break_a_rule_are_refused_with_the_verifiers_message(
    mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kernel: FusedKernel, schedule: Schedule) -> LoopNest:
        return _out_of_range(lower(kernel, schedule))

    monkeypatch.setattr(kernel_stages, "lower", broken)
    with pytest.raises(VerifyError, match=r"loops of .*: index \d runs over .*, extent"):
        compile_model(mlp)


def test_kernel_whose_loops_break_a_rule_falls_back(
    mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kernel: FusedKernel, schedule: Schedule) -> LoopNest:
        nest = lower(kernel, schedule)
        elsewhere = replace(nest, output=replace(nest.output, name="elsewhere"))
        return elsewhere if schedule.steps else nest

    monkeypatch.setattr(kernel_stages, "lower", broken)
    compiled = compile_model(mlp)
    for report in compiled.spec.kernels:
        assert report.schedule_source == "naive"
        assert report.note.startswith("the default schedule does not fit: loops of ")
    assert_equals_reference(Executable(compiled.spec), mlp)


def test_kernel_that_llvm_refuses_falls_back(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(
        nest: LoopNest, schedule: Schedule, target: Target, symbol: str, fixed_rounding: bool
    ) -> EmittedKernel:
        emitted = emit_loops(nest, schedule, target, symbol, fixed_rounding)
        return replace(emitted, text="no LLVM") if schedule.steps else emitted

    monkeypatch.setattr(kernel_stages, "emit_loops", emit)
    for report in compile_model(mlp).spec.kernels:
        assert report.schedule_source == "naive"
        assert report.note.startswith("the default schedule does not fit: LLVM refuses ")


def test_kernel_that_a_sketch_fails_on_can_still_be_tuned(
    mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "REDUCING", (_refuses,))
    program = kernels_of(mlp)
    kernel = next(call.kernel for call in program.calls if isinstance(call, KernelCall))
    space = spaces.schedule_space(kernel, host_target())
    assert space.size == 1
    assert space.schedule(space.default()) == spaces.naive_schedule()


def test_same_model_gives_the_same_artefact(conv_net: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_artefact.save(compile_model(conv_net).spec, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_memory_is_reused_between_layers(conv_net: Path) -> None:
    spec = compile_model(conv_net).spec
    assert spec.arena_lower_bound <= spec.arena_bytes <= 1.15 * spec.arena_lower_bound


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_dumped_by_its_name(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    vector = TensorType(DType.F32, (3,))
    nodes = (Node("relu", ("x",), "y"),)
    compile_model(
        Graph("g", ("x",), ("y",), nodes, {"x": vector, "y": vector}, {}), dump_after=stage
    )
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in printed if line.startswith("after ")] == [printed[0]]
    assert re.fullmatch(rf"after {stage}( of [0-9a-f]+)?:", printed[0])
    assert "".join(printed[1:]) or stage == "pack_constants"  # there is none


def test_stages_are_dumped_by_name(mlp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(mlp, dump_after="extract_kernels")
    printed = capsys.readouterr().err
    assert printed.startswith("after extract_kernels:\nprogram ")
    assert "matmul" in printed


def test_all_stages_run_in_the_order_of_the_map(mlp: Path) -> None:
    dumped: list[str] = []
    compile_model(mlp, dump_after=lambda stage, text: dumped.append(stage))
    assert tuple(dict.fromkeys(dumped)) == STAGES


def test_unknown_stage_is_refused_with_the_nearest(mlp: Path) -> None:
    with pytest.raises(SettingsError, match=r"no stage 'optimize'.*did you mean 'optimise'"):
        compile_model(mlp, dump_after="optimize")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError):
        compiler.build(tmp_path / "missing.onnx")


def test_graph_can_be_built_without_a_file(mlp: Path) -> None:
    graph = import_onnx(mlp)
    assert isinstance(graph, Graph)
    assert_equals_reference(compiler.build(graph), mlp)


def test_scalar_kernels_are_reported_with_the_reason_from_the_cache_too(tmp_path: Path) -> None:
    graph = import_model_proto(build_model("mlp"))

    def naive(kernel: FusedKernel) -> ScheduleChoice:
        return ScheduleChoice(spaces.naive_schedule(), "naive")

    for choose in (naive, None):
        for _ in range(2):
            cache = ObjectCache(ContentCache(tmp_path / "cache"))
            compiled = compile_model(graph, choose, cache=cache)
            reasons = {report.not_vectorised for report in compiled.spec.kernels}
            assert (reasons == {""}) == (choose is None)
        assert cache.hits and not cache.misses
