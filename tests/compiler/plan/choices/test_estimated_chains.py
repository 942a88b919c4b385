from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.benchmarks.chains import residual
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.targets import target_named
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.choices.estimated_chains import chain_candidates, estimated_chains
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute

TARGET = target_named("sapphirerapids")
LANES = TARGET.lanes(DType.F32)


def test_values_much_larger_than_the_cache_are_chained_once() -> None:
    block = residual(112, 16, 96, 32, 2, LANES)
    chosen = estimated_chains(GroupKernels(block.graph), SpaceCache(TARGET))
    assert chosen and set(chosen) <= set(block.values)
    apart = extract_kernels(block.graph).kernel_calls()
    assert len(extract_kernels(block.graph, chains=chosen).kernel_calls()) < len(apart)


def test_nothing_is_chained_where_all_stays_in_the_cache() -> None:
    block = residual(14, 16, 96, 32, 2, LANES)
    roomy = replace(TARGET, l2_bytes=64 << 20)
    assert estimated_chains(GroupKernels(block.graph), SpaceCache(roomy)) == ()


def test_windows_over_channels_of_what_a_part_gives_are_not_chained() -> None:
    maker = GraphMaker()
    y, layout = maker.input(1, 3, 320, 320), "NCHW->NCHWc"
    values = []
    for inputs, outputs in ((3, 16), (16, 32)):
        weight = maker.weights(outputs, inputs, 3, 3)
        windows: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
        values.append(maker.node("conv", y, weight, layout=layout, block=LANES, **windows))
        y, layout = maker.node("relu", values[-1]), "NCHWc"
    kernels = GroupKernels(maker.graph(y))
    assert chain_candidates(kernels, Estimator(SpaceCache(TARGET))) == ((values[0],),)
    assert estimated_chains(kernels, SpaceCache(TARGET)) == ()


def test_chained_model_computes_the_same() -> None:
    lanes = max(host_target().lanes(DType.F32), 4)
    graph = residual(56, 16, 96, 16, 1, lanes).graph
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal(graph.types[name].shape).astype(np.float32)
        for name in graph.inputs
    }
    found = Executable(compile_model(graph).spec).run(inputs)
    expected = evaluate_graph(graph, inputs)
    for name, array in found.items():
        assert np.allclose(array, np.asarray(expected[name], np.float32), rtol=1e-3, atol=1e-3)


def chained(size: int, l2_bytes: int) -> list[tuple[str, ...]]:
    block = residual(size, 32, 96, 32, 1, LANES)
    target = replace(TARGET, l2_bytes=l2_bytes)
    return list(chain_candidates(GroupKernels(block.graph), Estimator(SpaceCache(target))))


def test_values_that_leave_the_cache_may_be_chained_alone_and_together() -> None:
    block = residual(56, 32, 96, 32, 1, LANES)
    first, second = block.values
    assert chained(56, 1 << 20) == [(first,), (second,), (first, second)]


def test_what_stays_in_the_cache_is_not_offered() -> None:
    assert chained(14, 1 << 20) == []


def test_what_is_not_read_by_a_convolution_product_or_pool_is_not_offered() -> None:
    maker = GraphMaker()
    y = maker.node("matmul", maker.input(4096, 64), maker.weights(64, 512))
    graph = maker.graph(maker.node("softmax", y, axis=1))
    assert chain_candidates(GroupKernels(graph), Estimator(SpaceCache(TARGET))) == ()


def test_two_products_are_offered() -> None:
    maker = GraphMaker()
    first = maker.node("matmul", maker.input(4096, 64), maker.weights(64, 512))
    y = maker.node("matmul", maker.node("relu", first), maker.weights(512, 64))
    kernels = GroupKernels(maker.graph(y))
    assert chain_candidates(kernels, Estimator(SpaceCache(TARGET))) == ((first,),)
