"""Kernels have a form for small sizes next to the one for large sizes, where that is faster.

Convolutions of small planes are computed directly, others by Winograd; products of a few rows with
packed weights are summed up in integers, others with weights that are unpacked once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tests.onnxruntime_session import assert_agrees
from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.pipeline import Compiled, compile_model
from tunefarm.compiler.plan.sizes.small_size_variant import FEW
from tunefarm.compiler.runtime.spec.kernel_report import TUNED
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Algorithm

CHANNELS = 32
MICROSOFT = "com.microsoft"
FEATURES, HIDDEN = 256, 128


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


def test_planes_of_few_columns_have_tiles_of_their_own(model: Path, target: Target) -> None:
    """Each tile of a row reads all filters again; one of three columns takes as long as one of
    four, whose sums wait for each other."""
    compiled = built(model, target, "2..30")
    direct = next(item for item in compiled.schedules.values() if item.kernel.name.endswith("_few"))
    loops = format_loops(lower(direct.kernel, direct.used.schedule))
    assert {int(count) for count in re.findall(r"unrolled for ow in 0\.\.(\d+)", loops)} >= {4, 6}


def test_pixels_of_all_images_count(model: Path, target: Target) -> None:
    """Of 12 x 12 pixels those of one image are few, and those of two are not."""
    calls = built(model, target, "2..30").program.calls
    (few,) = (c.kernel for c in calls if isinstance(c, KernelCall) and c.output == FEW)
    (sizes,) = few.inputs
    by_images = (np.array([11, 11, images, 0, 0]) for images in (1, 2))  # sides less 1 go before
    found = [np.asarray(evaluate_kernel(few, {sizes.name: given})) for given in by_images]
    assert [value.tolist() for value in found] == [[True], [False]]


def test_planes_that_are_always_large_have_one_form(model: Path, target: Target) -> None:
    assert forms(built(model, target, "24..30")) == [(Algorithm.winograd(4), "")]


def test_filters_of_both_forms_are_stored_where_the_artefact_stays_small(
    model: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefarm.compiler.plan.sizes.small_size_variant.MOST_BYTES", 1.02)
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


def packed_model(folder: Path, bits: int) -> Path:
    """y = x w, whose weights have so many bits, of x [batch, rows, FEATURES]."""
    rng = np.random.default_rng(0)
    blocks = FEATURES // 32
    weights = rng.integers(0, 256, (HIDDEN, blocks, 4 * bits), np.uint8)
    scales = rng.uniform(0.5, 1, HIDDEN * blocks).astype(np.float32)
    sizes: dict[str, Any] = {"K": FEATURES, "N": HIDDEN, "bits": bits, "block_size": 32}
    product = node("MatMulNBits", "x w s", domain=MICROSOFT, **sizes)
    path = folder / f"net{bits}.onnx"
    x = tensor("x", ["batch", "rows", FEATURES])
    constants = {"w": weights, "s": scales}
    onnx.save(model_of([product], [x], constants=constants, domains={MICROSOFT: 1}), path)
    return path


def product_forms(
    folder: Path, bits: int, rows: str, batch: str = "1", target: str = "znver3"
) -> list[tuple[Algorithm, str]]:
    """As `forms`, of the product; whatever forms it has, its weights are stored once."""
    shapes = {"batch": (batch,), "rows": (rows,)}
    path = packed_model(folder, bits)
    compiled = compile_model(path, shapes=shapes, target=target_named(target))
    stored = sum(array.nbytes for array in compiled.spec.constants)
    assert stored == HIDDEN * FEATURES * bits // 8 + HIDDEN * FEATURES // 32 * 4
    return [
        (compiled.schedules[call.key].used.schedule.algorithm, " and ".join(map(str, call.guards)))
        for call in compiled.program.calls
        if isinstance(call, KernelCall) and call.kernel.name != "few"
    ]


BOTH = [(Algorithm.DIGITS, f"{FEW}.0"), (Algorithm.DIRECT, f"not {FEW}.0")]


@pytest.mark.parametrize(
    ("bits", "rows", "batch", "expected"),
    [
        (4, "2..64", "1", BOTH),
        (4, "1..128", "1..4", BOTH),
        (2, "1..64", "1", BOTH),
        (8, "1..64", "1", BOTH),
        (8, "2..64", "1", [(Algorithm.DIRECT, "")]),
        (4, "9..64", "1", [(Algorithm.DIRECT, "")]),
        (4, "1..8", "1", [(Algorithm.DIGITS, "")]),
        (4, "3..64", "3", [(Algorithm.DIRECT, "")]),  # 9 rows at least
    ],
)
def test_few_rows_and_many_have_a_form_each_of_a_product_whose_weights_are_stored_once(
    tmp_path: Path, bits: int, rows: str, batch: str, expected: list[tuple[Algorithm, str]]
) -> None:
    assert product_forms(tmp_path, bits, rows, batch) == expected


def test_one_form_is_enough_where_an_instruction_adds_products_of_bytes(tmp_path: Path) -> None:
    assert product_forms(tmp_path, 4, "1..64", target="znver4") == [(Algorithm.DIGITS, "")]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_of_few_and_of_many_rows_are_right(tmp_path: Path, bits: int) -> None:
    path = packed_model(tmp_path, bits)
    executable = compiler.build(path, shapes={"batch": ("1..2",), "rows": ("1..30",)})
    rng = np.random.default_rng(1)
    for batch, rows in ((1, 1), (1, 2), (2, 1), (1, 8), (2, 4), (1, 9), (2, 5), (2, 30), (1, 30)):
        x = rng.standard_normal((batch, rows, FEATURES)).astype(np.float32)
        assert_agrees(executable.run, path, {"x": x}, rtol=1e-4, atol=1e-3)
