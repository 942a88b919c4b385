from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.chains import residual
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.targets import target_named
from tunefarm.compiler.plan.fusion.chain_candidates import chain_candidates
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.types.dtypes import DType

TARGET = target_named("sapphirerapids")
LANES = TARGET.lanes(DType.F32)


def chained(size: int, l2_bytes: int) -> list[tuple[str, ...]]:
    block = residual(size, 32, 96, 32, 1, LANES)
    target = replace(TARGET, l2_bytes=l2_bytes)
    found = chain_candidates(GroupKernels(block.graph), target)
    return [tuple(chain.value for chain in item.chains) for item in found]


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
    assert chain_candidates(GroupKernels(graph), TARGET) == ()


def test_two_products_are_offered_with_what_is_saved() -> None:
    maker = GraphMaker()
    first = maker.node("matmul", maker.input(4096, 64), maker.weights(64, 512))
    y = maker.node("matmul", maker.node("relu", first), maker.weights(512, 64))
    (found,) = chain_candidates(GroupKernels(maker.graph(y)), TARGET)
    assert [chain.value for chain in found.chains] == [first]
    assert found.saved_bytes == 2 * 4096 * 512 * 4
