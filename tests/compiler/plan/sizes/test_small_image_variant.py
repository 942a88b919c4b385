"""Convolutions of planes that are small at run time are computed directly, others by Winograd."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tests.onnxruntime_session import assert_agrees
from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.plan.sizes.small_image_variant import FEW
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Algorithm

CHANNELS = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = conv(relu(conv(x))), 3x3, of images whose number, height and width are open.

    The second one has the larger filters, and a stride.
    """
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 17
    more = rng.standard_normal((8 * CHANNELS, CHANNELS, 3, 3)) / 17
    nodes = [
        node("Conv", "x taps", "sums", pads=[1, 1, 1, 1]),
        node("Relu", "sums", "relu"),
        node("Conv", "relu more", pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    path = tmp_path_factory.mktemp("planes") / "net.onnx"
    weights = {"taps": taps.astype(np.float32), "more": more.astype(np.float32)}
    x = tensor("x", ["n", CHANNELS, "h", "w"])
    onnx.save(model_of(nodes, [x], constants=weights), path)
    return path


def built(model: Path, target: Target, sides: str, images: str = "1..2") -> Compiled:
    shapes = {"n": (images,), "h": (sides,), "w": (sides,)}
    return compile_model(model, shapes=shapes, target=target)


def forms(compiled: Compiled) -> list[tuple[Algorithm, str]]:
    """The algorithm of each call of the first convolution, and when it is run."""
    return [
        (compiled.schedules[call.key].used.schedule.algorithm, " and ".join(map(str, call.guards)))
        for call in compiled.program.calls
        if isinstance(call, KernelCall) and "relu" in call.operators
    ]


@pytest.fixture
def target() -> Target:
    return target_named("znver5")


def test_each_form_is_run_where_it_is_the_faster_one(model: Path, target: Target) -> None:
    found = forms(built(model, target, "2..30"))
    assert found == [(Algorithm.DIRECT, f"{FEW}.0"), (Algorithm.winograd(4), f"not {FEW}.0")]


def test_planes_of_three_and_of_six_columns_have_tiles_of_their_own(
    model: Path, target: Target
) -> None:
    """Each tile of a row reads all filters again, and one of four is a third in vain of three."""
    compiled = built(model, target, "2..30")
    direct = next(item for item in compiled.schedules.values() if item.kernel.name.endswith("_few"))
    loops = format_loops(lower(direct.kernel, direct.used.schedule))
    assert {int(count) for count in re.findall(r"unrolled for ow in 0\.\.(\d+)", loops)} >= {3, 6}


def test_planes_that_are_always_large_have_one_form(model: Path, target: Target) -> None:
    assert forms(built(model, target, "24..30")) == [(Algorithm.winograd(4), "")]


def test_filters_of_both_forms_are_stored_where_the_artefact_stays_small(
    model: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefarm.compiler.plan.sizes.small_image_variant.MOST_BYTES", 1.02)
    assert forms(built(model, target, "2..30")) == [(Algorithm.winograd(4), "")]


def test_results_are_right_on_both_sides(model: Path) -> None:
    executable = compiler.build(model, shapes={"n": ("1..2",), "h": ("2..30",), "w": ("2..30",)})
    rng = np.random.default_rng(1)
    for images, height, width in ((1, 2, 3), (2, 30, 30), (2, 5, 30), (1, 9, 9), (1, 30, 17)):
        x = rng.standard_normal((images, CHANNELS, height, width)).astype(np.float32)
        assert_agrees(executable.run, model, {"x": x}, rtol=1e-3, atol=1e-3)


def test_kernels_with_a_schedule_of_their_own_have_one_form(model: Path, target: Target) -> None:
    shapes = {"n": ("1",), "h": ("2..30",), "w": ("2..30",)}

    def choose(kernel: FusedKernel) -> ScheduleChoice:
        return ScheduleChoice(default_schedule(kernel, target), TUNED)

    assert len(forms(compile_model(model, choose, shapes=shapes, target=target))) == 1
    assert len(forms(compile_model(model, lambda _: None, shapes=shapes, target=target))) == 2
