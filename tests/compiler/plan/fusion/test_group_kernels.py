from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.count_work import written_size
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.plan.fusion.group_kernels import WRITTEN_LIMIT, GroupKernel, GroupKernels


def kernels_of(graph: Graph) -> list[tuple[GroupKernel, ...]]:
    kernels = GroupKernels(graph)
    return [kernels.of(group) for group in fuse(graph)]


def test_groups_that_look_alike_have_one_kernel_and_values_of_their_own() -> None:
    maker = GraphMaker()
    y = maker.input(4, 4)
    for _ in range(2):
        y = maker.node("relu", maker.node("matmul", y, maker.weights(4, 4)))
    ((first,), (second,)) = kernels_of(maker.graph(y))
    assert second.kernel is first.kernel
    assert second.key == first.key
    assert (first.inputs, second.inputs) == (("x0", "c0"), (first.group.output, "c1"))


def test_group_that_is_too_long_has_a_kernel_for_each_node() -> None:
    maker = GraphMaker()
    y = maker.input(8)
    for _ in range(12):  # each reads its operand three times
        y = maker.node("selu", y)
    (made,) = kernels_of(maker.graph(y))
    assert [item.group.output for item in made] == [f"selu_{number}" for number in range(12)]
    assert all(written_size(item.kernel) <= WRITTEN_LIMIT for item in made)
