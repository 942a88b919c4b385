"""Stages: programs are verified where they are made, timed, and dumped when asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.compiler.errors import SettingsError, VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelProgram
from tunefarm.compiler.loops.ir import For, LoopKind, LoopNest, Memory
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.stages import Stages
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType

VECTOR = TensorType(DType.F32, (4,))
GRAPH = Graph("g", ("x",), ("y",), (Node("relu", ("x",), "y"),), {"x": VECTOR, "y": VECTOR}, {})


NEST = LoopNest("k", (), Memory("out", DType.F32, (4,)), ())


def test_stage_result_is_returned() -> None:
    stages = Stages(("first", "second"))
    assert stages.run("first", lambda: GRAPH) is GRAPH
    assert stages.run("second", lambda: 7) == 7


@pytest.mark.parametrize(
    "broken",
    [
        replace(GRAPH, outputs=("nothing",)),
        KernelProgram("p", (), ("nothing",), (), {}, {}),
        replace(NEST, body=(For("i", 4, 4, LoopKind.SERIAL, ()),)),
    ],
    ids=["graph", "kernels", "loops"],
)
def test_broken_program_is_refused_where_it_is_made(broken: object) -> None:
    seen: list[str] = []
    stages = Stages(("first",), lambda stage, text: seen.append(stage))
    with pytest.raises(VerifyError):
        stages.run("first", lambda: broken)
    assert seen == []


def test_only_the_named_stage_is_dumped(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Stages(("first", "second"), dump_after="second")
    stages.run("first", lambda: ("not", "this"))
    stages.run("second", lambda: GRAPH)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("after second:\n")
    assert "relu" in captured.err
    assert "not" not in captured.err


def test_dump_function_sees_every_stage() -> None:
    seen: list[tuple[str, str]] = []
    stages = Stages(("a", "b"), dump_after=lambda name, text: seen.append((name, text)))
    stages.run("a", lambda: ("one", "two"))
    stages.run("b", lambda: {"key": 1})
    assert seen == [("a", "one\ntwo"), ("b", "key: 1")]


def test_unknown_stage_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="no stage 'secnd'; the stages are first, second"):
        Stages(("first", "second"), dump_after="secnd")


def test_dumps_of_single_kernels_name_and_are_limited_to_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = Stages(("loops", "whole"), dump_after="all", kernels={"one"})
    stages.run("loops", lambda: NEST, "one")
    stages.run("loops", lambda: NEST, "two")
    stages.run("whole", lambda: ("all of it",))
    printed = capsys.readouterr().err
    assert printed == f"after loops of one:\n{format_loops(NEST)}\nafter whole:\nall of it\n"
