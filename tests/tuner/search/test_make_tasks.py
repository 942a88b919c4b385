"""Kernels are named by the model's nodes that they compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tunefarm.compiler.kernels.kernel import KernelProgram
from tunefarm.tuner.search.make_tasks import nodes_of


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        ([("conv1", "relu1")], "conv1 + relu1"),
        ([("conv1", "conv1", "relu1"), ("conv2", "relu2")], "conv1 + relu1 (and 1 more)"),
        ([("a", "b", "c")], "a + b + 1 more node"),
        ([("a", "b", "c", "d")], "a + b + 2 more nodes"),
        ([("",)], ""),
        ([("x" * 100,)], "x" * 100),
        ([("layers" + "x" * 99 + "/weight",)], "layers" + "x" * 44 + "…" + "x" * 42 + "/weight"),
    ],
)
def test_kernels_have_nodes_of_their_first_call(sources: list[tuple[str, ...]], name: str) -> None:
    calls = [SimpleNamespace(sources=names) for names in sources]
    program = cast(KernelProgram, SimpleNamespace(kernel_calls=lambda: {"key": calls}))
    assert nodes_of(program) == {"key": name}
