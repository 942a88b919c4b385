"""Networks of the zoo, built, saved, loaded and run: as onnxruntime, untuned and tuned."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.confirm.drawn_inputs import seeded_inputs
from tunefarm.tuner.confirm.latency import outputs_agree

SMALL = {
    "resnet18": Size(image=64, width=0.25, classes=10),
    "mobilenet_v2": Size(image=64, width=0.5, classes=10),
    "squeezenet1_1": Size(image=64, width=0.5, classes=10),
    "encoder": Size(width=0.125, tokens=13, layers=2),
    "mlp": Size(),
}
SPELLED_OUT = {
    "efficientnet_b0": Size(image=64, width=0.25, classes=10),
    "convnext_pico": Size(image=64, width=0.25, classes=10),
    "yolov3_tiny": Size(image=64, width=0.25, classes=10),
    "yolov8n": Size(image=64, width=0.5, classes=10),
    "unet": Size(image=48, width=0.25),
    "deeplab_v3plus": Size(image=48, width=0.25, classes=10),
    "vit_tiny": Size(image=48, classes=10, layers=2),
    "decoder_prefill": Size(width=0.5, tokens=13, layers=2, classes=50),
    "decoder_step": Size(width=0.5, tokens=13, layers=2, classes=50),
    "crnn": Size(image=36, width=0.25),
}
"""Models of other operators than the former ones, as exporters spell them out."""
Choose = Callable[[FusedKernel], ScheduleChoice | None]


def drawn(threads: int) -> Choose:
    """A schedule drawn from each kernel's space, as a search might have found it."""
    rng = random.Random(threads)

    def choose(kernel: FusedKernel) -> ScheduleChoice:
        space = schedule_space(kernel, host_target(), threads)
        return ScheduleChoice(space.schedule(space.sample(rng)), "tuned")

    return choose


def run_both(model: onnx.ModelProto, executable: Executable) -> list[tuple[Array, Array]]:
    """Our outputs and onnxruntime's, for the same seeded input."""
    inputs = seeded_inputs(executable.inputs, seed=3)
    session = exact_session(model)
    expected = session.run(list(executable.outputs), inputs)
    outputs = executable.run(inputs)
    return [(outputs[name], array) for name, array in zip(outputs, expected, strict=True)]


def assert_equal_to_onnxruntime(
    model: onnx.ModelProto, folder: Path, threads: int, choose: Choose | None
) -> Executable:
    """Build, save, load, run and compare, within rtol 1e-3 and atol 1e-4 x max|output|."""
    source, artefact = folder / "model.onnx", folder / "model.tuned"
    source.write_bytes(model.SerializeToString())
    compiler.build(source, choose, threads=threads).save(artefact)
    executable = compiler.load(artefact)
    for ours, expected in run_both(model, executable):
        assert outputs_agree(ours, expected)
    return executable


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_untuned_model_equals_onnxruntime(name: str, threads: int, tmp_path: Path) -> None:
    model = build_model(name, size=SMALL[name])
    executable = assert_equal_to_onnxruntime(model, tmp_path, threads, None)
    assert {kernel.schedule_source for kernel in executable.kernels} == {"default"}


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_tuned_model_equals_onnxruntime(name: str, threads: int, tmp_path: Path) -> None:
    model = build_model(name, size=SMALL[name])
    executable = assert_equal_to_onnxruntime(model, tmp_path, threads, drawn(threads))
    assert {kernel.schedule_source for kernel in executable.kernels} == {"tuned"}


@pytest.mark.parametrize("name", sorted(SPELLED_OUT))
def test_untuned_model_of_spelled_out_layers_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    assert_equal_to_onnxruntime(build_model(name, size=SPELLED_OUT[name]), tmp_path, 2, None)


@pytest.mark.parametrize("name", sorted(SPELLED_OUT))
def test_tuned_model_of_spelled_out_layers_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    model = build_model(name, size=SPELLED_OUT[name])
    assert_equal_to_onnxruntime(model, tmp_path, 1, drawn(1))


@pytest.mark.nightly
def test_resnet18_at_its_published_size_equals_onnxruntime(tmp_path: Path) -> None:
    assert_equal_to_onnxruntime(build_model("resnet18"), tmp_path, 2, drawn(2))
