"""Other engines: which there are, in what they compute, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler import build
from tunefarm.compiler.errors import MeasureError, SettingsError
from tunefarm.compiler.types.dtypes import DType
from tunefarm.tuner.commands import bench as bench_module
from tunefarm.tuner.commands.bench import bench, bench_table, parse_engines
from tunefarm.tuner.commands.engines import Asked, Engine
from tunefarm.tuner.confirm.latency import LatencyOptions

QUICK = LatencyOptions(rounds=3, min_sample_seconds=1e-4)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    return str(path)


def proto(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_missing_engine_is_named_with_what_installs_it(
    engine: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(SettingsError, match=f"{engine} is not installed") as refused:
        bench(model, build(model), [engine], QUICK)
    assert refused.value.hint == f"pip install {engine}"


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_engine_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="no engine is named"):
        parse_engines(text)


def test_each_engine_has_its_error_against_one_in_f32(model: str) -> None:
    result = bench(model, build(model, numerics="bf16"), ["onnxruntime"], QUICK)
    ours, other = result.engines
    assert (ours.engine, ours.numerics) == ("tunefarm", "bf16")
    assert (other.engine, other.numerics, other.error) == ("onnxruntime", "f32", None)
    assert ours.error is not None and 1e-5 < ours.error < 0.02
    assert result.reference == "onnxruntime"
    assert bench_table(result).row_count == 2


def test_engines_that_compute_in_our_storage_run_in_it_as_well(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[DType | None] = []

    def other(asked: Asked) -> list[Engine]:
        asked_for.append(asked.storage)
        run = build(asked.model).run
        return [Engine("other", "f32", run), Engine("other", "bf16", run)]

    monkeypatch.setattr(bench_module, "ENGINES", {"other": other})
    result = bench(model, build(model, numerics="bf16"), ["other"], QUICK)
    assert set(asked_for) == {DType.BF16}
    assert [engine.numerics for engine in result.engines] == ["bf16", "f32", "bf16"]
    assert [engine.error is None for engine in result.engines] == [False, True, False]


def test_outputs_that_are_not_finite_are_refused_with_what_has_the_range(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "h w")]
    path = str(tmp_path / "large.onnx")
    weight = np.full((8, 8), 3e4, np.float32)
    onnx.save(model_of(nodes, [tensor("x", [4, 8])], constants={"w": weight}), path)
    with pytest.raises(MeasureError, match="in fp16 are not finite") as refused:
        bench(path, build(path, numerics="f16"), ["onnxruntime"], QUICK)
    assert "bf16" in refused.value.hint


def test_a_quantised_model_is_compared_with_its_nodes_one_by_one(tmp_path: Path) -> None:
    nodes = [node("QuantizeLinear", "x 0.05 z", "q"), node("DequantizeLinear", "q 0.05 z")]
    path = str(tmp_path / "quantised.onnx")
    zero = np.array(3, np.uint8)
    onnx.save(model_of(nodes, [tensor("x", [4, 8])], constants={"z": zero}), path)
    result = bench(path, build(path), ["onnxruntime"], QUICK)
    assert [engine.numerics for engine in result.engines] == ["default", "int8"]
    assert all(engine.error == 0 for engine in result.engines)
