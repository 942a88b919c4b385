"""The closed-form loops of candidates: against the sketches' schedules, and worked by hand."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.nest_shape import NestShape, Operand, aliased_lines
from tunefarm.compiler.schedule.space import Candidate, Choice, ScheduleSpace, Sketch
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.packing import PackStage
from tunefarm.compiler.target import Target, host_target
from tunefarm.compiler.types.dtypes import DType

X86 = Target(
    "x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2", "fma"), 32, 16, 32768, 524288, 33554432, 2
)


def model(node: onnx.NodeProto, shape: list[int], **weights: tuple[int, ...]) -> onnx.ModelProto:
    constants = {name: np.ones(extents, np.float32) for name, extents in weights.items()}
    return model_of([node], [tensor("x", shape)], constants=constants, opset=20)


def conv(channels: int, size: int, window: int, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[window // 2] * 4, **attributes)
    group = attributes.get("group", 1)
    weights = (channels, channels // group, window, window)
    return model(node, [1, channels, size, size], w=weights)


MODELS = {
    "conv3x3": conv(32, 14, 3),
    "conv1x1": conv(64, 13, 1),
    "strided": conv(32, 15, 3, strides=[2, 2]),
    "depthwise": conv(24, 17, 3, group=24),
    "matmul": model(node("MatMul", "x w"), [97, 128], w=(128, 200)),
    "softmax": model(node("Softmax", "x", axis=-1), [300, 130]),
    "transpose": model(node("Transpose", "x", perm=[1, 0]), [100, 70]),
    "pool": model(node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2]), [1, 8, 33, 65]),
    "relu": model(node("Relu", "x"), [7, 1000]),
}


def kernel_of(name: str, target: Target = X86) -> FusedKernel:
    calls = kernels_of(import_model_proto(MODELS[name]), target).calls
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    return max(kernels, key=lambda kernel: len(kernel.stage(kernel.anchor).reduce_axes))


def shape_of(sketch: Sketch, candidates: list[Candidate]) -> NestShape:
    assert sketch.shape is not None
    return sketch.shape(
        {
            choice.name: np.array([candidate.positions[i] for candidate in candidates])
            for i, choice in enumerate(sketch.choices)
        }
    )


def drawn(space: ScheduleSpace, sketch: Sketch, count: int) -> list[Candidate]:
    rng = random.Random(0)
    return [
        Candidate(sketch.name, tuple(rng.randrange(len(c.values)) for c in sketch.choices))
        for _ in range(count)
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_loops_and_body_cover_every_axis(name: str, threads: int) -> None:
    """Iterations times points in the body are the extent of each axis, for every sketch."""
    space, lanes = schedule_space(kernel_of(name), X86, threads), X86.lanes(DType.F32)
    for sketch in space.sketches:
        candidates = drawn(space, sketch, 40)
        shape = shape_of(sketch, candidates)
        # What is packed by phases is indexed by quotients, which count as adjacent points.
        beyond = [
            space.choices(candidate).get("tail") == "mask"
            or any(isinstance(step, PackStage) for step in space.schedule(candidate).steps)
            for candidate in candidates
        ]
        nest = shape.nest
        covered = nest.inside.copy()
        for axis, trips in zip(nest.order(), nest.trips(), strict=True):
            covered[axis, np.arange(covered.shape[1])] *= trips
        for operand in shape.operands:
            for dimension, extent in zip(operand.dimensions, operand.extents, strict=True):
                steps = dict(dimension)
                reach = 1 + sum(step * (covered[axis] - 1) for axis, step in steps.items())
                left_over = extent - np.round(reach, 6)  # by windows that no longer fit
                assert (left_over < max(steps.values(), default=1)).all()
                assert (left_over > np.where(beyond, -lanes, -1)).all()


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_sensible_numbers(name: str) -> None:
    space = schedule_space(kernel_of(name), X86, 2)
    for sketch in space.sketches:
        shape = shape_of(sketch, drawn(space, sketch, 40))
        for part in ("body", "accumulators", "registers", "loads", "step", "cycles", "flops"):
            values = getattr(shape, part)
            assert values.shape == (40,) and (values > 0).all() and np.isfinite(values).all(), part
        for part in ("full", "lanes"):
            assert ((getattr(shape, part) >= 0) & (getattr(shape, part) <= 1)).all(), part
        assert (shape.grains <= shape.pieces).all() and (shape.grains >= 1).all()
        assert (shape.temporary >= 0).all() and (shape.aliased >= 1).all()


@pytest.mark.parametrize("name", ["conv3x3", "conv1x1", "depthwise", "matmul"])
def test_the_body_has_as_many_multiply_adds_as_the_code(name: str) -> None:
    """The longest run of fused multiply-adds in the code is the unrolled body of the tile.

    Tiles at a border that decide on padding themselves have less to do: they are left out, as are
    those without a loop, which may share a run with their neighbours.
    """
    target = host_target()
    if not target.has_fma:
        pytest.skip("this machine has no fused multiply-add")
    kernel = kernel_of(name, target)
    space = schedule_space(kernel, target, 1, "strict")
    sketch = space.sketches[0]
    candidates = [
        candidate
        for candidate in drawn(space, sketch, 24)
        if space.choices(candidate).get("padding") != "inline"
        and space.choices(candidate)["unroll"] != (3, 3)
    ]
    bodies = shape_of(sketch, candidates).body
    for candidate, body in zip(candidates, bodies.tolist(), strict=True):
        nest = lower(kernel, space.schedule(candidate))
        text, _ = emit_kernel(nest, target, "kernel")
        blocks = re.split(r"\n\S+:\n", text)
        assert max(len(re.findall(r"call .*@\"?llvm\.fma", block)) for block in blocks) == body


def test_a_window_touches_its_points_and_the_overlap_once() -> None:
    """Rows oh + kh: 4 positions of a window of 3 touch 6 rows of 10; columns 2 ow + kw."""
    rows, columns = ((0, 1), (1, 1)), ((2, 2), (3, 1))
    data = Operand("data", 4, (rows, columns), (10, 9))
    extents = np.array([[4.0, 20.0], [3.0, 3.0], [3.0, 1.0], [3.0, 1.0]])
    assert data.footprint(extents).tolist() == [4 * 6 * 7, 4 * 10 * 1]
    assert data.moves_with(5).tolist() == [True, True, True, True, False]
    assert (data.stride(0), data.stride(2), data.stride(4)) == (4 * 9, 8, 0)


def test_lines_a_page_apart_compete() -> None:
    count = np.array([4.0, 12.0])
    assert aliased_lines(4096, count).tolist() == [4, 12]
    assert aliased_lines(3 * 4096, count).tolist() == [4, 12]
    assert aliased_lines(3072, count).tolist() == [1, 3]
    assert aliased_lines(32, count).tolist() == [1, 1]
    assert aliased_lines(0, count).tolist() == [1, 1]


def test_a_narrowed_sketch_has_the_shapes_of_the_values_it_kept() -> None:
    kernel = kernel_of("matmul")
    sketch = schedule_space(kernel, X86, 1).sketches[0]
    kept = tuple(
        Choice(choice.name, tuple(v for v in choice.values if v in (*choice.values[-1:], d)))
        for choice, d in zip(sketch.choices, sketch.default, strict=True)
    )
    narrow = sketch.narrowed(kept)
    assert narrow.size < sketch.size
    positions = tuple(c.values.index(d) for c, d in zip(kept, sketch.default, strict=True))
    full = ScheduleSpace([sketch]).default()
    one, other = (shape_of(narrow, [Candidate("tiled", positions)]), shape_of(sketch, [full]))
    assert one.cycles == other.cycles and (one.nest.trips() == other.nest.trips()).all()
    assert narrow.build(dict(zip((c.name for c in kept), sketch.default, strict=True)))


def test_a_sketch_is_not_narrowed_to_what_it_does_not_have() -> None:
    sketch = schedule_space(kernel_of("relu"), X86, 1).sketches[0]
    choices = (Choice(sketch.choices[0].name, (999,)), *sketch.choices[1:])
    with pytest.raises(ScheduleError, match="999"):
        sketch.narrowed(choices)
