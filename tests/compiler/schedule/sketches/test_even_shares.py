"""Default schedules for several threads give each of them as much to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.schedule.shares import longest_share, work
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Binary
from tunefarm.compiler.expr.walk import loads, postorder
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.count_work import kernel_iterations
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.loops.ir import Store, Update, walk
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.sketches.even_shares import waiting
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import Target

TARGETS = ("x86-64-v3", "x86-64-v4")


@dataclass(frozen=True)
class Case:
    """One operator, with constant weights if it has some, whose default schedule is looked at."""

    operator: str
    data: Sequence[int]
    weight: Sequence[int] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    evenness: float = 0.8
    """The least share of the threads' time in which they work."""
    more: Sequence[Sequence[int]] = ()
    """The shapes of further constants."""

    def __str__(self) -> str:
        sides = ("x".join(map(str, shape)) for shape in (self.data, self.weight))
        return f"{self.operator} {' '.join(sides)}"

    def kernel(self, target: Target) -> FusedKernel:
        """The operator's kernel."""
        shapes = [shape for shape in (self.weight, *self.more) if shape]
        weights = {f"w{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
        made = helper.make_node(self.operator, ["x", *weights], ["y"], **dict(self.attributes))
        proto = model([made], [tensor("x", self.data)], constants=weights, opset=20)
        calls = kernels_of(import_model_proto(proto), target).calls
        kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
        return max(kernels, key=kernel_iterations)


PADDED = (("pads", (1, 1, 1, 1)),)
CASES = [
    Case("Conv", (1, 144, 56, 56), (32, 144, 1, 1)),  # as many blocks as a tile has vectors
    Case("Conv", (1, 32, 112, 112), (16, 32, 1, 1)),
    Case("Conv", (1, 32, 56, 56), (144, 32, 1, 1)),  # tiles of three blocks, nine of them
    Case("Conv", (1, 960, 7, 7), (160, 960, 1, 1)),
    Case("Conv", (1, 128, 28, 28), (128, 128, 3, 3), PADDED),
    Case("Conv", (1, 256, 14, 14), (256, 256, 3, 3), PADDED),
    Case("Conv", (1, 512, 4, 33), (512, 512, 3, 3), PADDED),
    Case("Conv", (1, 32, 40, 40), (32, 32, 3, 3), PADDED, 0.6),  # 10 rows of tiles, 2 blocks
    Case("Conv", (1, 192, 500), (192, 192, 1)),  # vectors do not divide the positions
    Case("Conv", (1, 80, 1000), (256, 80, 3), (("pads", (1, 1)),)),
    Case("Conv", (1, 64, 2000), (64, 64, 3), (("dilations", (8,)), ("pads", (8, 8)))),
    Case("Conv", (1, 256, 300), (256, 1, 31), (("group", 256), ("pads", (15, 15)))),
    Case("Conv", (1, 64, 55, 55), (16, 64, 1, 1)),
    Case("Conv", (1, 13, 9, 17, 19), (21, 13, 3, 3, 3), (("pads", (1,) * 6),)),
    Case("MatMul", (1, 197, 192), (192, 576)),
    Case("MatMul", (1, 1, 512), (512, 1408)),  # a vector: what counts are the weights
    Case("MatMul", (1, 1, 512), (512, 192)),
    Case("MatMul", (33, 512), (512, 37), (), 0.6),
    Case("Softmax", (1, 21, 96, 96), (), (("axis", 1),)),
    Case("Softmax", (1, 40, 777), (), (("axis", 1),)),
    Case("Transpose", (1, 192, 196), (), (("perm", (0, 2, 1)),)),
    Case("Transpose", (1, 96, 64, 64), (), (("perm", (0, 2, 3, 1)),)),
    Case("Relu", (1, 3, 111, 111)),
]


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", TARGETS)
def test_threads_share_a_kernel_evenly(name: str, case: Case, threads: int) -> None:
    target = target_named(name)
    kernel = case.kernel(target)
    body = lower(kernel, default_schedule(kernel, target, threads)).body
    assert work(body) / longest_share(body, threads) / threads >= case.evenness


@pytest.mark.parametrize("size", [(64, 40), (128, 20), (256, 10), (128, 13)])
@pytest.mark.parametrize("name", TARGETS)
def test_many_threads_share_blocks_of_rows_and_channels(name: str, size: tuple[int, int]) -> None:
    """Small planes of 3x3 convolutions have fewer rows of tiles than a server has cores."""
    channels, side = size
    data, weight = (1, channels, side, side), (channels, channels, 3, 3)
    target = target_named(name)
    kernel = Case("Conv", data, weight, PADDED).kernel(target)
    body = lower(kernel, default_schedule(kernel, target, 16)).body
    assert work(body) / longest_share(body, 16) / 16 >= 0.6


@pytest.mark.parametrize("rows", [5, 25, 64])
@pytest.mark.parametrize("name", TARGETS)
def test_shared_tiles_read_packed_constants_block_by_block(name: str, rows: int) -> None:
    """1001 columns: vectors that lie across two blocks would be read element by element."""
    target = target_named(name)
    kernel = Case("MatMul", (rows, 512), (512, 1001)).kernel(target)
    (packed,) = (buffer.name for buffer in kernel.inputs if buffer.constant)
    body = lower(kernel, default_schedule(kernel, target, 2)).body
    read = [
        load
        for statement in walk(body)
        if isinstance(statement, Store | Update)
        for load in loads(statement.value)
        if load.buffer == packed
    ]
    assert read
    for load in read:
        nodes = [node for item in load.indices for node in postorder(item)]
        assert not any(isinstance(node, Binary) and node.op == "mod" for node in nodes)


def recurrent_shares(
    operator: str, units: int, target: Target, threads: int = 2, ways: int = 1
) -> tuple[int, int]:
    """Of one row through a layer of 1 or 2 ways: all work, and that of the busiest thread."""
    rows = {"LSTM": 4, "GRU": 3}[operator] * units
    direction = ("direction", "forward" if ways == 1 else "bidirectional")
    attributes = (("hidden_size", units), direction)
    case = Case(operator, (4, 1, 8), (ways, rows, 8), attributes, more=((ways, rows, units),))
    kernel = case.kernel(target)
    body = lower(kernel, default_schedule(kernel, target, threads)).body
    return work(body), longest_share(body, threads)


@pytest.mark.parametrize("operator, units", [("LSTM", 512), ("GRU", 512), ("GRU", 256)])
@pytest.mark.parametrize("name", TARGETS)
def test_threads_share_every_product_of_a_step(name: str, operator: str, units: int) -> None:
    total, longest = recurrent_shares(operator, units, target_named(name))
    assert total / longest / 2 >= 0.8


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
@pytest.mark.parametrize("name", TARGETS)
def test_many_threads_share_both_ways_of_a_layer(name: str, operator: str) -> None:
    total, longest = recurrent_shares(operator, 512, target_named(name), threads=8, ways=2)
    assert total / longest / 8 >= 0.8


@pytest.mark.parametrize("name", TARGETS)
def test_two_threads_take_a_way_each(name: str) -> None:
    """Neither waits for the other within a step."""
    total, longest = recurrent_shares("LSTM", 512, target_named(name), ways=2)
    assert total / longest / 2 >= 0.99


@pytest.mark.parametrize("name", TARGETS)
def test_threads_do_not_meet_after_each_short_step(name: str) -> None:
    total, longest = recurrent_shares("LSTM", 64, target_named(name))
    assert longest == total


def test_too_little_work_is_not_shared() -> None:
    target = target_named("x86-64-v3")
    kernel = Case("MatMul", (1, 64), (64, 64)).kernel(target)
    body = lower(kernel, default_schedule(kernel, target, 2)).body
    assert longest_share(body, 2) == work(body)


def test_waiting_is_what_the_busiest_thread_has_over_an_even_share() -> None:
    assert waiting(np.array([1.0, 2.0, 3.0, 4.0, 7.0]), 2) == pytest.approx(
        [2.0, 1.0, 4 / 3, 1.0, 8 / 7]
    )
