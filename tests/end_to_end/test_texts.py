"""Models whose inputs and outputs are texts and dictionaries, from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.frontend.onnx_models import node
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.import_onnx import import_onnx
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import Settings
from tunefarm.tuner.building.lowered import compile_with
from tunefarm.tuner.commands.bench import bench
from tunefarm.tuner.commands.cli import app
from tunefarm.tuner.commands.command_line import run_command
from tunefarm.tuner.confirm.latency import LatencyOptions, compare_models

ML = "ai.onnx.ml"
LABELS = ["cat", "dog", "cow"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Words -> numbers -> scores -> labels and dictionaries, as scikit-learn's pipelines export."""
    nodes = [
        node("LabelEncoder", "x", "n", domain=ML, keys_strings=["a"], values_floats=[1.5]),
        node(
            "LinearClassifier",
            "n",
            "label scores",
            domain=ML,
            classlabels_strings=LABELS,
            coefficients=[0.1, 0.2, 0.3, 0.4, -0.5, 0.6],
            intercepts=[0.0, 0.1, 0.2],
            multi_class=1,
            post_transform="SOFTMAX",
        ),
        node("ZipMap", "scores", "maps", domain=ML, classlabels_strings=LABELS),
    ]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, value))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["N", 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]),
            helper.make_value_info("maps", maps),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_build_and_run(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    np.save("x.npy", np.array([["a", "b"], ["new", "a"]]))
    build = ["build", "--untuned", "--model", "m.onnx", "--shape", "N=1..8", "--output", "m.tuned"]
    assert run_command(app, build) == 0
    run = ["run", "m.tuned", "--input", "x=x.npy", "--output", "y.npz", "--profile"]
    assert run_command(app, run) == 0
    assert "label: string[2]" in capsys.readouterr().out
    with np.load("y.npz") as results:
        assert set(results["label"].tolist()) <= set(LABELS)
        np.testing.assert_allclose(results["maps"].sum(axis=1), 1.0, rtol=1e-5)
    np.save("x.npy", np.array([[1.5, 2.5]]))
    assert run_command(app, ["run", "m.tuned", "--input", "x=x.npy"]) == 1
    assert "must have strings" in capsys.readouterr().err


def test_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators of strings are named by a build, run before it, and cannot be compared."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node(
            "Tokenizer",
            ["text"],
            ["tokens"],
            domain="com.microsoft",
            mark=0,
            mincharnum=1,
            pad_value="#",
            separators=[" "],
        ),
        node("Flatten", "tokens", "rows"),
        node(
            "TfIdfVectorizer",
            "rows",
            "counts",
            mode="TF",
            min_gram_length=1,
            max_gram_length=1,
            max_skip_count=0,
            ngram_counts=[0],
            ngram_indexes=[0, 1],
            pool_strings=["a", "cat"],
        ),
        node("Neg", "counts"),
    ]
    graph = helper.make_graph(
        nodes,
        "sentences",
        [helper.make_tensor_value_info("text", TensorProto.STRING, [None, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "m.onnx")
    model = ["--untuned", "--model", "m.onnx", "--shape", "text=n:1..8,1"]
    assert run_command(app, ["build", *model, "--output", "m.tuned"]) == 0
    assert "before the compiled code: Tokenizer, Flatten, TfIdf" in capsys.readouterr().err
    np.save("text.npy", np.array([["a cat and a dog"], [""], ["cat"]]))
    run = ["run", "m.tuned", "--input", "text=text.npy", "--output", "y.npz"]
    assert run_command(app, run) == 0
    assert "n=3" in capsys.readouterr().out
    with np.load("y.npz") as results:
        assert results["y"].tolist() == [[-2, -1], [0, 0], [0, -1]]
    assert run_command(app, ["build", *model, "--emit", "object", "--output", "m.o"]) == 1
    assert "Tokenizer, Flatten, TfIdfVectorizer" in capsys.readouterr().err
    spec = compile_with(import_onnx("m.onnx", {"text": (3, 1)}), None, Settings(), host_target())
    with pytest.raises(SettingsError, match=r"operators on strings \(Tokenizer"):
        bench("m.onnx", Executable(spec.spec), ["onnxruntime"], LatencyOptions(rounds=2))


def test_others_get_texts_and_the_tuner_compares_tensors(model: Path) -> None:
    spec = compile_with(import_onnx(model, {"N": (3,)}), None, Settings(), host_target()).spec
    options = LatencyOptions(rounds=2, max_seconds=1.0)
    found = bench(model, Executable(spec), ["onnxruntime"], options)
    assert [engine.engine for engine in found.engines] == ["tunefarm", "onnxruntime"]
    models = [Executable(spec.of_tensors()) for _ in range(2)]
    assert compare_models(models[0], models[1], None, options).untuned > 0
