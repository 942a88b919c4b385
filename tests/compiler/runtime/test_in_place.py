"""Arrays are used where they are: generated code asks for whole elements, not for cache lines.

Inputs and outputs start one element behind a multiple of 64 bytes, or end right at a guard page.
An instruction that needs its operand aligned, or one that reaches beyond the last element, is a
crash here. Each model's first kernel reads the input, its last one writes the output.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model, node, outputs_of, tensor
from tests.compiler.schedule.guarded_run import targets
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT
from tunefarm.compiler.schedule.schedule import ScheduleChoice
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.measure.sandbox.guarded import GuardedBuffer

TARGETS = targets()
SCHEDULES = 3  # of each kernel: the default one and random ones


def _models() -> dict[str, onnx.ModelProto]:
    rng = np.random.default_rng(7)

    def weight(*shape: int) -> npt.NDArray[Any]:
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    def one_node(node: onnx.NodeProto, shape: list[int], *weights: npt.NDArray[Any]) -> Any:
        names = list(node.input)[1:]
        return model([node], [tensor("x", shape)], constants=dict(zip(names, weights, strict=True)))

    image = [1, 5, 13, 17]
    return {
        "conv": one_node(node("Conv", "x w"), image, weight(6, 5, 3, 3)),
        "padded conv": one_node(
            node("Conv", "x w b", pads=[1, 1, 1, 1]), image, weight(17, 5, 3, 3), weight(17)
        ),
        "strided conv": one_node(
            node("Conv", "x w", pads=[3, 3, 3, 3], strides=[2, 2]),
            [1, 3, 19, 19],
            weight(16, 3, 7, 7),
        ),
        "depthwise conv": one_node(
            node("Conv", "x w", pads=[1, 1, 1, 1], group=5), image, weight(5, 1, 3, 3)
        ),
        "matmul": one_node(node("MatMul", "x w"), [13, 21], weight(21, 35)),
        "softmax": one_node(node("Softmax", "x", axis=-1), [7, 39]),
        "max pool": one_node(
            node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), image
        ),
        "average pool": one_node(
            node("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2]), image
        ),
        "mean": one_node(node("GlobalAveragePool", "x"), image),
        "transpose": one_node(node("Transpose", "x", perm=[0, 2, 3, 1]), image),
    }


MODELS = _models()


class RandomSchedules:
    """Chooses a random point of each kernel's space; the seed 0 stands for the default schedule."""

    def __init__(self, seed: int, target: Target) -> None:
        self._rng = random.Random(seed)
        self._seed, self._target = seed, target

    def __call__(self, kernel: FusedKernel) -> ScheduleChoice | None:
        if self._seed == 0:
            return None
        space = schedule_space(kernel, self._target)
        return ScheduleChoice(space.schedule(space.sample(self._rng)), "random")


@contextmanager
def guarded(type: TensorType, *, at_end: bool) -> Iterator[npt.NDArray[Any]]:
    """An array between guard pages that is not aligned to more than its elements.

    It ends right at the second page, or starts one element behind a multiple of 64 bytes.
    """
    whole = -(-type.bytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
    with GuardedBuffer(whole) as buffer:
        start = whole - type.bytes if at_end else type.dtype.bytes
        buffer.poison(0xFF)
        view = buffer.bytes[start : start + type.bytes]
        yield view.view(type.dtype.numpy).reshape(type.shape)
        rest = np.delete(buffer.bytes, np.s_[start : start + type.bytes])
        assert (rest == 0xFF).all(), "bytes round the array were changed"
        assert not buffer.damage()


def run_guarded(executable: Executable, graph: Graph, *, at_end: bool) -> None:
    """Run between guard pages and compare with NumPy."""
    rng = np.random.default_rng(1)
    with ExitStack() as stack:
        inputs, out = (
            {
                name: stack.enter_context(guarded(type, at_end=at_end))
                for name, type in types.items()
            }
            for types in (executable.inputs, executable.outputs)
        )
        for array in (*inputs.values(), *out.values()):
            assert at_end or address_of(array) % ALIGNMENT == array.itemsize
        for array in inputs.values():
            array[...] = rng.standard_normal(array.shape)
        before = {name: array.copy() for name, array in inputs.items()}
        results = executable.run(inputs, out=out)
        for name, array in inputs.items():
            np.testing.assert_array_equal(array, before[name])
        for result, expected in zip(results.values(), outputs_of(graph, before), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
        assert all(results[name] is array for name, array in out.items())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_read_and_write_arrays_that_are_not_aligned(name: str, target: str) -> None:
    graph = import_model_proto(MODELS[name])
    for seed in range(SCHEDULES):
        choose = RandomSchedules(seed, TARGETS[target])
        executable = Executable(compile_model(graph, choose, target=TARGETS[target]).spec)
        assert not any(kernel.note for kernel in executable.kernels)  # the schedules fit
        for at_end in (False, True):
            run_guarded(executable, graph, at_end=at_end)
