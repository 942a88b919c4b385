"""The zoo's networks at reduced sizes: meaning, fusion and layouts."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.compiler.graph.graph_helpers import (
    assert_close,
    evaluate_graph,
    evaluate_program,
    random_inputs,
)
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise

SIZES = {
    "resnet18": Size(image=64, width=0.25, classes=10),
    "mobilenet_v2": Size(image=64, width=0.5, classes=10),
    "squeezenet1_1": Size(image=64, width=0.5, classes=10),
    "encoder": Size(width=0.25, tokens=16, layers=2),
}
LARGEST_KERNEL_COUNT = {"resnet18": 18, "mobilenet_v2": 40, "squeezenet1_1": 27, "encoder": 13}


def imported(name: str) -> Graph:
    return import_model_proto(build_model(name, size=SIZES[name]))


@pytest.mark.parametrize("name", SIZES)
def test_network_keeps_its_meaning_in_few_kernels(name: str) -> None:
    graph = imported(name)
    program = extract_kernels(optimise(graph, 8))
    inputs = random_inputs(graph)
    found = evaluate_program(program, inputs)
    assert_close(found, evaluate_graph(graph, inputs), tolerance=1e-4)
    keys = {call.key for call in program.calls if isinstance(call, KernelCall)}
    assert len(keys) <= LARGEST_KERNEL_COUNT[name]


def test_resnet18_has_no_conversions_and_no_loose_pointwise_kernels() -> None:
    program = extract_kernels(optimise(imported("resnet18"), 8))
    names = Counter(call.kernel.name for call in program.calls if isinstance(call, KernelCall))
    assert names == {
        "conv_relu": 9,
        "conv_add_relu": 8,
        "conv": 3,
        "max_pool": 1,
        "reduce_mean": 1,
        "matmul_add": 1,
    }


def test_encoder_fuses_bias_activation_and_residual_into_matmuls() -> None:
    program = extract_kernels(optimise(imported("encoder"), 8))
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    loose = {"add", "mul", "div", "gelu", "erf", "tanh"}
    assert not loose & {call.kernel.name for call in calls}
