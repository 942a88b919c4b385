"""Other engines that are not there."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from compiler import build
from compiler.errors import SettingsError
from tests.end_to_end.tiny_model import tiny_model
from tuner.commands.bench import bench, parse_engines
from tuner.confirm.latency import LatencyOptions


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_missing_engine_is_named_with_what_installs_it(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model(), path)
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(SettingsError, match=f"{engine} is not installed") as refused:
        bench(str(path), build(path), [engine], LatencyOptions(rounds=3))
    assert refused.value.hint == f"pip install {engine}"


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_engine_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="no engine is named"):
        parse_engines(text)
