"""A model's code as text: compiled by others, it computes what the executable computes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runtime.c_models import cc, odd_mlp, random_inputs
from tunefarm.compiler.emit import assembly_text, llvm_text
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array


def drawn(folder: Path, threads: int) -> tuple[ExecutableSpec, str, str]:
    """The model with a drawn schedule for every other kernel; its LLVM and assembly."""
    onnx.save(odd_mlp(), folder / "model.onnx")
    graph = import_onnx(folder / "model.onnx")
    rng = random.Random(threads)
    seen: list[FusedKernel] = []

    def choose(kernel: FusedKernel) -> ScheduleChoice | None:
        seen.append(kernel)
        if len(seen) % 2:
            return None
        space = schedule_space(kernel, host_target(), threads)
        return ScheduleChoice(space.schedule(space.sample(rng)), "tuned")

    compiled = compile_model(graph, choose, threads=threads, keep_llvm=True)
    spec = compiled.spec
    assert {kernel.schedule_source for kernel in spec.kernels} == {"default", "tuned"}
    return spec, llvm_text(compiled), assembly_text(compiled)


def outputs_of(spec: ExecutableSpec, code: bytes) -> dict[str, Array]:
    """What `spec` computes when all of its code is `code`."""
    return Executable(replace(spec, entry=code, objects=())).run(random_inputs(spec))


@pytest.mark.parametrize("threads", [1, 2])
def test_llvm_and_assembly_compute_what_the_model_computes(threads: int, tmp_path: Path) -> None:
    spec, llvm, assembly = drawn(tmp_path, threads)
    (tmp_path / "model.s").write_text(assembly)
    cc(tmp_path, "-c", "model.s", "-o", "model.o")
    expected = Executable(spec).run(random_inputs(spec))
    for code in (object_code(llvm, spec.target), (tmp_path / "model.o").read_bytes()):
        for name, array in outputs_of(spec, code).items():
            np.testing.assert_array_equal(array, expected[name])


def test_the_text_says_how_to_call_the_code(tmp_path: Path) -> None:
    spec, llvm, assembly = drawn(tmp_path, 1)
    for text in (llvm, assembly):
        assert 'inputs[0]: "input.1", f32[64, 256]' in text
        assert "constants[0]: float32" in text
        assert f"arena: {spec.arena_bytes} bytes" in text
    assert f'target triple = "{spec.target.triple}"' in llvm
    assert llvm.count("define void @kernel_") == len(spec.kernels)
    assert llvm.count("define ") == llvm.count("#0 {")  # each for the target's CPU
    assert f'attributes #0 = {{ "target-cpu"="{spec.target.cpu}"' in llvm
