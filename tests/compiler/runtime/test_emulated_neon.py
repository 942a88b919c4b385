"""Code for 64-bit Arm computes what it is to compute: kernels and whole models, emulated."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import tiny_kernels
from tests.compiler.runtime.c_models import random_inputs, run
from tests.compiler.runtime.emulated import (
    COMPILER,
    Case,
    cross_compiled,
    emulated,
    example_outputs,
    kernel_outputs,
    run_emulated,
)
from tests.compiler.schedule.narrow_kernels import narrowed, values_for
from tests.compiler.schedule.small_kernels import inputs_for, kernel_of
from tests.onnxruntime_session import assert_agrees
from tests.targets import target_named
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.c_library.export_c import export_library, export_object
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

MODELS = {
    "resnet18": Size(image=64, width=0.25, classes=10),
    "mobilenet_v2": Size(image=64, width=0.5, classes=10),
    "encoder": Size(width=0.125, tokens=13, layers=2),
}
ARMS = ("neoverse-v1", "armv8-neon")


@emulated
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_models_compute_what_onnxruntime_does(model: str, threads: int, tmp_path: Path) -> None:
    proto = build_model(model, size=MODELS[model])
    arm = target_named(("armv8-neon", "neoverse-v1")[threads - 1])
    spec = compile_model(import_model_proto(proto), target=arm, threads=threads).spec
    cross_compiled(spec, tmp_path, "model")
    inputs = random_inputs(spec)
    found = example_outputs(spec, tmp_path, "model", inputs)
    assert_agrees(lambda _: found, proto, inputs, rtol=0, atol=0, of_largest=1e-4)


@emulated
def test_a_model_in_bf16_is_that_in_f32_but_for_rounding(tmp_path: Path) -> None:
    """Its products are of matrices in vectors, which threads share without setting them up."""
    proto = build_model("encoder", size=MODELS["encoder"])
    graph, arm = import_model_proto(proto), target_named("neoverse-v1")
    compiled = compile_model(graph, target=arm, threads=2, numerics="bf16")
    assert any(item.used.schedule.uses_tiles for item in compiled.schedules.values())
    cross_compiled(compiled.spec, tmp_path, "model")
    inputs = random_inputs(compiled.spec)
    found = example_outputs(compiled.spec, tmp_path, "model", inputs)
    assert_agrees(lambda _: found, proto, inputs, rtol=0, atol=0, of_largest=0.02)


@emulated
def test_a_library_for_a_newer_cpu_says_so(tmp_path: Path) -> None:
    proto = build_model("mlp", size=Size())
    spec = compile_model(import_model_proto(proto), target=target_named("neoverse-v1")).spec
    cross_compiled(spec, tmp_path, "mlp")
    example_outputs(spec, tmp_path, "mlp", random_inputs(spec), cpu="max")
    with pytest.raises(AssertionError, match=r"lacks some instructions .*: bf16 dot"):
        run_emulated(tmp_path, "mlp_example", cpu="cortex-a72")


@emulated
def test_a_library_of_two_programs_runs_that_which_the_cpu_can_run(tmp_path: Path) -> None:
    proto = build_model("mlp", size=Size())
    graph = import_model_proto(proto)
    programs = [compile_model(graph, target=target_named(name)).spec for name in ARMS]
    export_library(programs[0], tmp_path, "mlp", others=programs[1:])
    run(tmp_path, COMPILER, "mlp_example.c", "-L.", "-lmlp", "-Wl,-rpath,$ORIGIN", "-omlp_example")
    inputs = random_inputs(programs[0])
    for cpu in ("max", "cortex-a72"):  # the latter has NEON and nothing more
        found = example_outputs(programs[0], tmp_path, "mlp", inputs, cpu=cpu)
        assert_agrees(lambda _: found, proto, inputs, rtol=0, atol=0, of_largest=1e-4)  # noqa: B023


@emulated
def test_an_object_file_for_another_architecture_is_linked_there(tmp_path: Path) -> None:
    graph = import_model_proto(build_model("mlp", size=Size()))
    spec = compile_model(graph, target=target_named(ARMS[1])).spec
    export_object(spec, tmp_path / "mlp.o", "mlp", compiler=COMPILER)
    cross_compiled(spec, tmp_path / "library", "mlp")
    (tmp_path / "mlp_example.c").write_bytes((tmp_path / "library/mlp_example.c").read_bytes())
    run(tmp_path, COMPILER, "mlp_example.c", "mlp.o", "-lm", "-pthread", "-o", "mlp_example")
    inputs = random_inputs(spec)
    by_object = example_outputs(spec, tmp_path, "mlp", inputs)
    for name, array in example_outputs(spec, tmp_path / "library", "mlp", inputs).items():
        np.testing.assert_array_equal(by_object[name], array)


@emulated
def test_kernels_compute_what_they_mean_under_drawn_schedules(tmp_path: Path) -> None:
    neon, rng, cases = target_named("armv8-neon"), random.Random(7), []
    for kernel in tiny_kernels().values():
        space = schedule_space(kernel, neon)
        drawn = [space.schedule(space.sample(rng)) for _ in range(2)]
        inputs = inputs_for(kernel)
        for schedule in (naive_schedule(), space.schedule(space.default()), *drawn):
            cases.append(Case(kernel, schedule, inputs))
    for case, found in zip(cases, kernel_outputs(cases, neon, tmp_path), strict=True):
        case.check(found)


@emulated
@pytest.mark.parametrize("name", ["armv8-neon", "neoverse-v1"])
def test_products_of_narrow_numbers_are_exact(name: str, tmp_path: Path) -> None:
    arm, rng, cases = target_named(name), random.Random(3), []
    types = [(DType.U8, DType.I8), (DType.I8, DType.I8), (DType.BF16, DType.BF16)]
    for left, right in types:
        total = DType.F32 if left.is_float else DType.I32
        for m, k, n in ((1, 64, 40), (7, 33, 17), (5, 128, 3)):
            operands = [TensorType(total, (m, k)), TensorType(total, (k, n))]
            kernel = kernel_of(operands, [("matmul", ["x0", "x1"], {})], ["x1"])
            kernel = narrowed(kernel, left, right, requantised=total is DType.I32)
            space = schedule_space(kernel, arm)
            inputs = values_for(kernel)
            for candidate in (space.default(), space.sample(rng)):
                cases.append(Case(kernel, space.schedule(candidate), inputs))
    for case, found in zip(cases, kernel_outputs(cases, arm, tmp_path), strict=True):
        case.check(found)
