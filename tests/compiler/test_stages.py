"""Stages: programs are verified where they are made, timed, and dumped when asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.errors import SettingsError, VerifyError
from compiler.graph.ir import Graph
from compiler.stages import Stages
from compiler.types.dtypes import DType
from compiler.types.node import Node
from compiler.types.tensor_type import TensorType

VECTOR = TensorType(DType.F32, (4,))
GRAPH = Graph("g", ("x",), ("y",), (Node("relu", ("x",), "y"),), {"x": VECTOR, "y": VECTOR}, {})


def test_stage_result_is_returned_and_timed() -> None:
    stages = Stages(("first", "second"))
    assert stages.run("first", lambda: GRAPH) is GRAPH
    assert stages.run("second", lambda: 7) == 7
    assert [time.name for time in stages.times] == ["first", "second"]
    assert all(time.seconds >= 0 for time in stages.times)


def test_broken_program_is_refused_where_it_is_made() -> None:
    broken = replace(GRAPH, outputs=("nothing",))
    with pytest.raises(VerifyError):
        Stages(("first",)).run("first", lambda: broken)


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
