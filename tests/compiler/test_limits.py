"""Limits: small models that ask for much are refused before it is asked for, on every path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import integers, model, node, tensor
from tunefarm.compiler.errors import ArtefactError, LimitError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph import fold_constants
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import Limits, ResourceBudget
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.runtime.execution.executable import Executable

SMALL = Limits(bytes=1 << 20, nodes=100)


def shaped(operator: str, *shape: int) -> onnx.ModelProto:
    nodes = f"{operator} x s"
    return model(nodes, [tensor("x", [4])], constants={"s": integers(*shape)})


def doubled(count: int, **constants: np.ndarray) -> onnx.ModelProto:
    """Concat(x, x), `count` times over; of a constant, if there is one."""
    first = next(iter(constants), "x")
    nodes = [
        helper.make_node("Concat", [f"v{i}" if i else first] * 2, [f"v{i + 1}"], axis=0)
        for i in range(count)
    ]
    nodes += [node("ReduceSum", f"v{count}", "s"), node("Add", "x s")]
    return model(nodes, [tensor("x", [4])], constants=constants)


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (shaped("Reshape", *(1,) * 64, 4), "a value of node 'y' has 65 dimensions"),
        (model("Relu x", [tensor("x", [1] * 65)]), "input 'x' has 65"),
        (
            model(
                [
                    helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"])
                    for i in range(101)
                ],
                [tensor("x", [4])],
                ["v101"],
            ),
            "the model has more than 100 nodes",
        ),
    ],
    ids=["rank", "input_rank", "nodes"],
)
def test_model_beyond_the_limits_is_refused_at_import(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(LimitError) as caught:
        import_model_proto(proto, limits=SMALL)
    assert message in caught.value.message
    assert "limits." in caught.value.hint


@pytest.mark.parametrize(
    "proto",
    [
        shaped("Expand", 1 << 20, 4),
        shaped("Tile", 1 << 30),
        doubled(30),
        doubled(30, c=np.ones(4, np.float32)),
    ],
    ids=["expand", "tile", "doubled", "doubled_constant"],
)
def test_values_between_kernels_beyond_the_limits_are_refused(proto: onnx.ModelProto) -> None:
    graph = import_model_proto(proto, limits=SMALL)
    for build in (compile_model, kernels_of):
        with pytest.raises(LimitError, match=r"the value '.*' would take"):
            build(graph, limits=SMALL)


def test_values_that_no_kernel_has_in_memory_may_be_as_large_as_they_are() -> None:
    """The scores of attention, at the greatest of many lengths, are never there as a whole."""
    nodes = (
        "t = Transpose x perm=[0,2,1]; scores = MatMul x t; weights = Softmax scores axis=-1; "
        "MatMul weights x"
    )
    graph = import_model_proto(model(nodes, [tensor("x", [1, 4096, 16])]), limits=SMALL)
    assert graph.types["scores"].bytes > 16 * SMALL.bytes
    compile_model(graph, limits=SMALL)


def test_concat_of_a_constant_with_itself_does_not_grow_when_it_is_folded() -> None:
    graph = import_model_proto(doubled(12, c=np.ones(1 << 10, np.float32)))
    folded = optimise(graph, None)
    assert all(array.nbytes <= 1 << 20 for array in folded.constants.values())


def test_constants_are_folded_only_as_far_as_they_are_allowed() -> None:
    nodes = [
        node("Neg", "c", "n"),
        node("Mul", "n n", "m"),
        helper.make_node("Add", ["x", "m"], "y"),
    ]
    constants = {"c": np.ones(100_000, np.float32)}
    graph = import_model_proto(model(nodes, [tensor("x", [1])], constants=constants))

    def operators(limit: int) -> list[str]:
        allowance = ResourceBudget(Limits(bytes=limit))
        return [kept.operator for kept in fold_constants.run(graph, allowance).nodes]

    assert operators(10_000_000) == ["add"]
    assert operators(500_000) == ["neg", "mul", "add"]


def test_long_computations_are_not_folded() -> None:
    extent = 2000
    nodes = "p = MatMul a a; MatMul x p"
    constants = {"a": np.ones((extent, extent), np.float32)}
    graph = import_model_proto(model(nodes, [tensor("x", [1, extent])], constants=constants))
    assert len(fold_constants.run(graph).nodes) == 2


def relu_chain() -> Graph:
    nodes = [
        node("Softmax", "x", "a"),
        node("Relu", "a", "b"),
        helper.make_node("Softmax", ["b"], "y"),
    ]
    return import_model_proto(model(nodes, [tensor("x", [4, 1000])]))


@pytest.mark.parametrize(
    "build",
    [
        lambda graph, limits: compile_model(graph, limits=limits),
        lambda graph, limits: kernels_of(graph, limits=limits),
        lambda graph, limits: optimise(graph, None, allowance=ResourceBudget(limits)),
    ],
    ids=["compile_model", "kernels_of", "optimise"],
)
def test_graph_beyond_the_limits_is_refused(build: Callable[[Graph, Limits], object]) -> None:
    for limits in (Limits(nodes=2), Limits(rank=1), Limits(seconds=1e-9)):
        with pytest.raises(LimitError):
            build(relu_chain(), limits)


def test_run_beyond_the_limits_is_refused_when_the_model_is_built() -> None:
    compile_model(relu_chain(), limits=Limits(bytes=100_000))
    with pytest.raises(LimitError, match=r"a run of the model .* would take"):
        compile_model(relu_chain(), limits=Limits(bytes=30_000))


def test_model_that_does_not_fit_into_this_machine_is_refused_when_it_is_loaded() -> None:
    spec = compile_model(relu_chain()).spec
    with pytest.raises(ArtefactError, match=r"needs .* bytes, and this machine has"):
        Executable(replace(spec, arena_bytes=1 << 50))
